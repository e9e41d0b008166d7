//! The virtual services of IPVS (`/proc/net/ip_vs`): addresses of this host whose connections go to others.
//!
//! IPVS takes them where packets are handed to local sockets (`NF_INET_LOCAL_IN`), so their addresses are local, and a
//! wildcard socket on the same port matches them. It schedules a connection by its SYN: what comes without one goes to
//! that socket. So a service counts as a filter, beside which weir sends no SYN cookie of its own, and its packets pass.

use std::io::{self, ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use weir_core::policy::Services;

/// Of the calling thread's network namespace. The file is there once the module is.
const PATH: &str = "/proc/thread-self/net/ip_vs";
/// Lines before the first service.
const HEAD: usize = 3;
/// How often weir looks, at least, and so that it takes a hundredth of a CPU at most: the file names every server.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const SHARE: u32 = 100;

/// Whether there is any service.
pub fn has_services() -> bool {
    let beginning = std::fs::File::open(PATH).and_then(|file| {
        let mut text = String::new();
        file.take(1024).read_to_string(&mut text).map(|_| text)
    });
    beginning.map_or_else(
        |error| error.kind() != ErrorKind::NotFound,
        |text| lists_any(&text),
    )
}

fn lists_any(text: &str) -> bool {
    text.lines().nth(HEAD).is_some()
}

/// All that take TCP. Those that cannot be read may be anywhere.
pub fn services() -> Services {
    match std::fs::read_to_string(PATH) {
        Ok(text) => parse(&text),
        Err(error) => unread(&error),
    }
}

fn unread(error: &io::Error) -> Services {
    Services {
        unknown: error.kind() != ErrorKind::NotFound,
        ..Services::default()
    }
}

fn parse(text: &str) -> Services {
    let mut services = Services::default();
    for line in text.lines().skip(HEAD) {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            // A server of the service above.
            (Some("->"), _) | (Some("UDP" | "SCTP"), _) | (None, _) => {}
            (Some("TCP"), at) => match at.and_then(address) {
                Some(at) => {
                    services.addresses.insert(at);
                }
                None => services.unknown = true,
            },
            // FWM: of packets that netfilter has marked.
            _ => services.unknown = true,
        }
    }
    services
}

/// `0A000001:0050`, or `[fd00:0000:0000:0000:0000:0000:0000:0001]:0050`.
fn address(text: &str) -> Option<(IpAddr, u16)> {
    let (ip, port) = text.rsplit_once(':')?;
    let ip = match ip.strip_prefix('[') {
        Some(v6) => IpAddr::V6(v6.strip_suffix(']')?.parse().ok()?),
        None => IpAddr::V4(Ipv4Addr::from_bits(u32::from_str_radix(ip, 16).ok()?)),
    };
    Some((ip, u16::from_str_radix(port, 16).ok()?))
}

/// The services as the last look saw them.
pub struct ServiceWatch {
    found: Services,
    due: Instant,
}

impl ServiceWatch {
    /// `found`: what the first look saw.
    pub fn new(found: Services, now: Instant) -> ServiceWatch {
        let due = now + LOOK_EVERY;
        ServiceWatch { found, due }
    }

    /// When the next look is.
    pub fn due_at(&self) -> Instant {
        self.due
    }

    /// Looks, if it is time to. What it sees, if that is something else than before.
    pub fn look(&mut self, now: Instant, find: impl FnOnce() -> Services) -> Option<Services> {
        if now < self.due {
            return None;
        }
        let begun = Instant::now();
        let found = find();
        self.due = now + LOOK_EVERY.max(begun.elapsed() * SHARE);
        if found == self.found {
            return None;
        }
        self.found = found.clone();
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "IP Virtual Server version 1.2.1 (size=4096)\n\
                          Prot LocalAddress:Port Scheduler Flags\n  \
                          -> RemoteAddress:Port Forward Weight ActiveConn InActConn\n";

    fn parsed(lines: &str) -> Services {
        parse(&(HEADER.to_owned() + lines))
    }

    fn services(addresses: &[(&str, u16)], unknown: bool) -> Services {
        let addresses = addresses
            .iter()
            .map(|(ip, port)| (ip.parse().unwrap(), *port));
        Services {
            addresses: addresses.collect(),
            unknown,
        }
    }

    #[test]
    fn services_are_read_as_the_kernel_writes_them() {
        let of_kube = "TCP  0A600001:01BB rr\n  \
                       -> 0A000002:192B      Masq    1      3          0\n\
                       UDP  0A60000A:0035 rr\n  \
                       -> 0AF40003:0035      Masq    1      0          0\n\
                       TCP  0A60000A:0035 rr persistent 10800 FFFFFFFF\n\
                       TCP  [fd00:0010:0096:0000:0000:0000:0000:0001]:01BB wlc\n  \
                       -> [fd00:0000:0000:0000:0000:0000:0000:0002]:192B      Masq    1      0          0\n\
                       SCTP C0A80001:0BB8 rr ops\n";
        let expected = [
            ("10.96.0.1", 443),
            ("10.96.0.10", 53),
            ("fd00:10:96::1", 443),
        ];
        assert_eq!(parsed(of_kube), services(&expected, false));
        let every_port = parsed("TCP  C0000201:0000 wrr persistent 300 FFFFFFFF\n");
        assert_eq!(every_port, services(&[("192.0.2.1", 0)], false));
    }

    #[test]
    fn a_service_of_marks_or_one_that_is_not_understood_may_take_any_connection() {
        for line in [
            "FWM  00000001 rr\n",
            "TCP  nonsense rr\n",
            "QUIC 0A000001:0050 rr\n",
        ] {
            assert!(parsed(line).unknown, "{line}");
        }
        assert!(unread(&ErrorKind::PermissionDenied.into()).unknown);
    }

    #[test]
    fn without_the_module_or_without_services_there_are_none() {
        assert_eq!(parsed(""), Services::default());
        assert_eq!(unread(&ErrorKind::NotFound.into()), Services::default());
        assert!(!lists_any(HEADER) && !lists_any(""));
        assert!(lists_any(&(HEADER.to_owned() + "UDP  0A60000A:0035 rr\n")));
    }

    #[test]
    fn a_look_says_what_has_changed_and_takes_a_hundredth_of_the_time() {
        let one = || services(&[("10.0.0.1", 80)], false);
        let begun = Instant::now();
        let mut watch = ServiceWatch::new(Services::default(), begun);
        assert_eq!(watch.look(begun, || panic!("not due")), None);
        let due = watch.due_at();
        assert_eq!(watch.look(due, one), Some(one()));
        let due = watch.due_at();
        let slow = || {
            std::thread::sleep(Duration::from_millis(20));
            one()
        };
        assert_eq!(watch.look(due, slow), None);
        let next = watch.due_at() - due;
        assert!(next > LOOK_EVERY, "{next:?}");
    }
}
