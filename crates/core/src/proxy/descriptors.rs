//! How the descriptors of a process are divided among its proxies, and in each between clients, servers and pipes.
//!
//! A client without a descriptor waits in the accept queue, at no cost. A client that was accepted when none is left for
//! its server gets nothing but an error. So a proxy accepts only as many as it has descriptors for, two each.

/// What the process has open beside its proxies: its log, sockets to ask it, files that it reads, threads that look
/// clients' names up.
const OF_PROCESS: u64 = 32;
/// What a thread of a proxy has open without a client: its listening socket, epoll, wake-ups.
const OF_THREAD: u64 = 16;
/// What a look-up of a backend's name has open: hosts(5), a socket to each name server.
const OF_NAME: u64 = 4;
/// Pipes that a thread uses at most, two descriptors each.
const MOST_PIPES: u64 = 256;

/// What one proxy does with its descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptors {
    /// Clients at once, each with a connection to a server; at least 1.
    pub clients: usize,
    /// Pipes of one thread at once: transfers beyond copy.
    pub pipes: usize,
}

impl Descriptors {
    /// Of a proxy that may have `count` descriptors, and looks so many names of backends up. Pipes get an eighth at most: a
    /// transfer can do without.
    pub fn of(count: u64, threads: usize, names: usize) -> Descriptors {
        let threads = threads.max(1) as u64;
        let pipes = (count / 16 / threads).min(MOST_PIPES);
        let fixed = threads * (OF_THREAD + 2 * pipes) + OF_NAME * names as u64;
        Descriptors {
            clients: (count.saturating_sub(fixed) / 2).max(1) as usize,
            pipes: pipes as usize,
        }
    }
}

/// Descriptors with which [`Descriptors::of`] has so many clients at least.
pub fn wanted(max_clients: u32, threads: usize, names: usize) -> u64 {
    let fixed = threads.max(1) as u64 * OF_THREAD + OF_NAME * names as u64;
    (2 * u64::from(max_clients) + fixed) * 8 / 7 + 2
}

/// Divides the descriptors of a process among proxies by what they want ([`wanted`]). What is left over is divided in
/// proportion. Where there are too few, those that want little get all of it, and the others equal parts of the rest: a
/// proxy that sets a small `max_clients` does not starve beside one that sets none.
pub fn divide(limit: u64, wanted: &[u64]) -> Vec<u64> {
    let left = limit.saturating_sub(OF_PROCESS);
    let sum: u128 = wanted.iter().copied().map(u128::from).sum();
    if sum <= u128::from(left) {
        let share = |wanted: &u64| (u128::from(left) * u128::from(*wanted) / sum.max(1)) as u64;
        return wanted.iter().map(share).collect();
    }
    let mut shares = vec![0; wanted.len()];
    let mut smallest_first: Vec<usize> = (0..wanted.len()).collect();
    smallest_first.sort_by_key(|one| wanted[*one]);
    let mut left = left;
    for (done, one) in smallest_first.into_iter().enumerate() {
        let equal = left / (wanted.len() - done) as u64;
        shares[one] = wanted[one].min(equal);
        left -= shares[one];
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_client_that_is_accepted_has_a_descriptor_for_its_server() {
        for limit in [64, 200, 1024, 4096, 65_536, 1 << 20, u64::MAX] {
            for threads in [1, 2, 8, 64] {
                let [share] = divide(limit, &[100_000])[..] else {
                    unreachable!("one proxy, one share")
                };
                let own = Descriptors::of(share, threads, 0);
                let threads = threads as u64;
                let fixed = OF_PROCESS + threads * (OF_THREAD + 2 * own.pipes as u64);
                let used = fixed + 2 * own.clients as u64;
                assert!(
                    own.clients == 1 || used <= limit,
                    "{limit} {threads} {own:?}"
                );
            }
        }
        let few = divide(200, &[100_000])[0];
        assert_eq!(
            Descriptors::of(few, 2, 0),
            Descriptors {
                clients: 58,
                pipes: 5
            }
        );
        let usual = divide(1 << 20, &[100_000])[0];
        assert!(Descriptors::of(usual, 8, 0).clients > 500_000);
        let with_names = Descriptors::of(few, 2, 3).clients;
        assert_eq!(with_names, Descriptors::of(few, 2, 0).clients - 6);
    }

    #[test]
    fn proxies_share_by_the_clients_that_they_may_have() {
        assert_eq!(divide(1032, &[300, 100]), [750, 250]);
        assert_eq!(divide(1032, &[1]), [1000]);
        assert_eq!(divide(10, &[1, 1]), [0, 0]);
        assert_eq!(divide(u64::MAX, &[0]), [0]);
    }

    #[test]
    fn one_that_wants_little_gets_all_of_it_beside_those_that_want_more_than_there_is() {
        assert_eq!(divide(1032, &[700, 100, 5000]), [450, 100, 450]);
        assert_eq!(divide(1032, &[5000, 600]), [500, 500]);
        for (threads, names) in [(1, 0), (2, 3), (64, 9)] {
            let few = wanted(2000, threads, names);
            let all = wanted(100_000, threads, 0);
            let share = divide(20_000, &[few, all, all])[0];
            assert_eq!(share, few.min((20_000 - OF_PROCESS) / 3));
            assert!(Descriptors::of(share, threads, names).clients >= 2000);
        }
        for clients in [0, 1, 7, 500, 100_000, u32::MAX] {
            let own = Descriptors::of(wanted(clients, 3, 2), 3, 2);
            assert!(own.clients >= clients as usize, "{own:?}");
        }
    }
}
