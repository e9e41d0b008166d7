//! Chunked bodies.

use weir_proxy::http::{ChunkScanner, Next, Piece};

/// The first byte is the length of the pieces in which the rest arrives.
pub fn run(data: &[u8]) {
    let Some((&step, body)) = data.split_first() else {
        return;
    };
    let whole = ended(body, body.len().max(1));
    let split = ended(body, usize::from(step).max(1));
    // Which fault of a refused body is found first depends on nothing but the bytes.
    assert_eq!(whole, split);
    if let Ok(Some(end)) = whole {
        assert_eq!(data_in_pieces(&body[..end]), Some(skipped(body)));
        // What follows the end is never looked at.
        assert_eq!(ended(&body[..end], body.len().max(1)), whole);
    }
}

/// Where the body ends; `None`: not within these bytes. The error is the refusal's name.
fn ended(body: &[u8], step: usize) -> Result<Option<usize>, &'static str> {
    let (mut scanner, mut end) = (ChunkScanner::new(), 0);
    for piece in body.chunks(step) {
        let scanned = scanner.scan(piece).map_err(|refusal| refusal.name())?;
        assert!(scanned.body <= piece.len() && scanned.data <= scanned.body);
        end += scanned.body;
        if scanned.next == Next::End {
            return Ok(Some(end));
        }
        assert_eq!(scanned.body, piece.len(), "it reads on until the end");
    }
    Ok(None)
}

/// Bytes of data in a whole body, piece by piece.
fn data_in_pieces(mut body: &[u8]) -> Option<u64> {
    let (mut scanner, mut data) = (ChunkScanner::new(), 0);
    while !body.is_empty() {
        match scanner.piece(body).ok()? {
            Piece::Framing(len) => {
                assert!(len > 0, "pieces are not empty");
                body = &body[len..];
            }
            Piece::Data(len) => {
                assert!(len > 0, "pieces are not empty");
                (data, body) = (data + len as u64, &body[len..]);
            }
            Piece::End => return None,
        }
    }
    Some(data)
}

/// The same of a body whose data are passed on unseen, as they are spliced.
fn skipped(body: &[u8]) -> u64 {
    let (mut scanner, mut at, mut data) = (ChunkScanner::new(), 0, 0);
    loop {
        let scanned = scanner.scan(&body[at..=at]).expect("a body that is taken");
        (at, data) = (at + scanned.body, data + scanned.data as u64);
        match scanned.next {
            Next::End => return data,
            Next::Framing => {}
            Next::Data(len) => {
                scanner.skip(len);
                (at, data) = (at + len as usize, data + len);
            }
        }
    }
}
