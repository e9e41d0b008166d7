//! The local ports that connections to one server address and port take, by /proc/net/tcp and tcp6.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;

/// Connections from one local address to one address and port, with local ports that connect() chooses from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ports {
    /// The local address.
    pub from: IpAddr,
    /// The other end.
    pub to: SocketAddr,
    /// Local ports that are taken.
    pub taken: u32,
    /// Of these, those in TIME-WAIT.
    pub time_wait: u32,
}

/// The range that connect() chooses local ports from; `None`: not readable.
pub fn range() -> Option<RangeInclusive<u16>> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
    let mut words = text.split_whitespace().map(str::parse);
    Some(words.next()?.ok()?..=words.next()?.ok()?)
}

/// Who takes at least `least` ports of the range in the calling thread's network namespace, the most first.
pub fn taken(range: &RangeInclusive<u16>, least: u32) -> Vec<Ports> {
    let files = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];
    let texts: Vec<String> = files
        .iter()
        .filter_map(|file| std::fs::read_to_string(file).ok())
        .collect();
    count(texts.iter().flat_map(|text| text.lines()), range, least)
}

fn count<'a>(
    lines: impl Iterator<Item = &'a str>,
    range: &RangeInclusive<u16>,
    least: u32,
) -> Vec<Ports> {
    let mut counts: BTreeMap<(IpAddr, SocketAddr), (u32, u32)> = BTreeMap::new();
    for (local, remote, state) in lines.filter_map(connection) {
        if range.contains(&local.port()) && remote.port() != 0 {
            let (taken, time_wait) = counts.entry((local.ip(), remote)).or_default();
            *taken += 1;
            *time_wait += u32::from(state == TIME_WAIT);
        }
    }
    let ports = |((from, to), (taken, time_wait))| Ports {
        from,
        to,
        taken,
        time_wait,
    };
    let mut all: Vec<Ports> = counts.into_iter().map(ports).collect();
    all.retain(|ports| ports.taken >= least);
    all.sort_by_key(|ports| std::cmp::Reverse(ports.taken));
    all
}

/// include/net/tcp_states.h
const TIME_WAIT: u8 = 6;
/// include/net/tcp_states.h
pub(super) const LISTEN: u8 = 10;

/// Local end, other end and state in a line of a table such as /proc/net/tcp; `None`: it is the head. IPv4 addresses
/// that are mapped into IPv6 are IPv4 addresses.
pub(super) fn connection(line: &str) -> Option<(SocketAddr, SocketAddr, u8)> {
    let mut words = line.split_whitespace().skip(1);
    let (local, remote) = (end(words.next()?)?, end(words.next()?)?);
    Some((local, remote, u8::from_str_radix(words.next()?, 16).ok()?))
}

/// `0100007F:1F90`: words of the address in the machine's byte order, the port as people write numbers.
fn end(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let word = |at: usize| {
        let word = u32::from_str_radix(address.get(at..at + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    };
    let ip = match address.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            let octets: [u8; 16] = words.concat().try_into().ok()?;
            IpAddr::V6(Ipv6Addr::from(octets)).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_counted_by_both_addresses_and_the_server_s_port() {
        let lines = "\
  sl  local_address rem_address   st
   0: 0200420A:8001 0100420A:1F90 06 rest
   1: 0200420A:8002 0100420A:1F90 01 rest
   2: 0200420A:0050 0100420A:1F90 06 rest
   3: 00000000:8003 00000000:0000 0A rest
   4: 0000000000000000FFFF00000200420A:8004 0000000000000000FFFF00000100420A:1F90 06 rest
   5: B80D0120000000000000000001000000:8001 B80D0120000000000000000002000000:01BB 06 rest
";
        let ports = |from: &str, to: &str, taken, time_wait| Ports {
            from: from.parse().unwrap(),
            to: to.parse().unwrap(),
            taken,
            time_wait,
        };
        let four = ports("10.66.0.2", "10.66.0.1:8080", 3, 2);
        let six = ports("2001:db8::1", "[2001:db8::2]:443", 1, 1);
        let range = 0x8000..=0x8fff;
        assert_eq!(count(lines.lines(), &range, 1), [four, six]);
        assert_eq!(count(lines.lines(), &range, 2), [four]);
    }

    #[test]
    fn the_kernel_s_own_tables_are_read() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let stream = std::net::TcpStream::connect(to).unwrap();
        let from = stream.local_addr().unwrap();
        let all = taken(&(from.port()..=from.port()), 1);
        assert!(
            all.iter().any(|ports| ports.to == to && ports.taken == 1),
            "{all:?}"
        );
        assert!(range().is_some_and(|range| range.contains(&from.port())));
    }
}
