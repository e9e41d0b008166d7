//! CRC32c (RFC 9260 Appendix A): what a header of version 2 may have for a checksum.

/// Castagnoli's polynomial, with its bits in reverse.
const POLYNOMIAL: u32 = 0x82f6_3b78;

static TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut rest = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            rest = rest >> 1 ^ if rest & 1 == 1 { POLYNOMIAL } else { 0 };
            bit += 1;
        }
        table[byte] = rest;
        byte += 1;
    }
    table
}

/// The checksum of all the bytes.
pub(super) fn crc32c<'a>(bytes: impl IntoIterator<Item = &'a u8>) -> u32 {
    let step = |sum: u32, byte: &u8| sum >> 8 ^ TABLE[usize::from(sum as u8 ^ byte)];
    !bytes.into_iter().fold(u32::MAX, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3720 Appendix B.4, and the check value that catalogues of checksums give.
    #[test]
    fn the_checksums_of_the_standards_come_out() {
        let ascending: Vec<u8> = (0..32).collect();
        for (bytes, sum) in [
            (&b"123456789"[..], 0xe306_9283),
            (&[0; 32], 0x8a91_36aa),
            (&[0xff; 32], 0x62a8_ab43),
            (&ascending, 0x46dd_794e),
            (&[], 0),
        ] {
            assert_eq!(crc32c(bytes), sum, "{bytes:x?}");
        }
    }
}
