//! The TCP sockets of a namespace, by /proc/net.

use crate::error::{Context, Result};

/// TCP_LISTEN as /proc/net/tcp writes it.
pub const LISTEN: &[u8] = &[0x0a];
/// States in which a socket still has packets to exchange: ESTABLISHED, FIN_WAIT1, CLOSE_WAIT,
/// LAST_ACK, CLOSING.
pub const BUSY: &[u8] = &[0x01, 0x04, 0x08, 0x09, 0x0b];

/// Counts the TCP sockets of the calling thread's namespace that are in one of `states` (and on
/// `port`).
pub fn sockets_in_state(states: &[u8], port: Option<u16>) -> Result<usize> {
    let mut count = 0;
    for file in ["tcp", "tcp6"] {
        let path = format!("/proc/thread-self/net/{file}");
        let text = std::fs::read_to_string(&path).context(format!("cannot read {path}"))?;
        count += text
            .lines()
            .skip(1)
            .filter(|row| row_matches(row, states, port))
            .count();
    }
    Ok(count)
}

fn row_matches(row: &str, states: &[u8], port: Option<u16>) -> bool {
    let mut columns = row.split_whitespace();
    let local = columns
        .nth(1)
        .and_then(|address| address.rsplit(':').next());
    let local = local.and_then(|text| u16::from_str_radix(text, 16).ok());
    let state = columns
        .nth(1)
        .and_then(|text| u8::from_str_radix(text, 16).ok());
    state.is_some_and(|state| states.contains(&state)) && (port.is_none() || local == port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_proc_net_tcp_are_matched_by_state_and_port() {
        let row = "   0: 0100007F:0050 00000000:0000 0A 00000000:00000000 00:00000000 0 0 0 1";
        assert!(row_matches(row, LISTEN, Some(80)));
        assert!(row_matches(row, LISTEN, None));
        assert!(!row_matches(row, LISTEN, Some(81)));
        assert!(!row_matches(row, BUSY, None));
    }
}
