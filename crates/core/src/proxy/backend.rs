//! Backends as the settings name them, and whose turn it is among backends of different weight.

use std::fmt;
use std::net::SocketAddr;

/// The highest weight of a backend; the lowest is 1.
pub const MAX_WEIGHT: u16 = 256;

/// An item of a proxy's setting `backends`: a server that it hands connections to, or all servers of a name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BackendSetting {
    /// Where it listens.
    pub address: BackendAddress,
    /// Its part of the connections, relative to the other backends: 1 to [`MAX_WEIGHT`]. Each address of a name has
    /// it.
    pub weight: u16,
}

/// Where a backend listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum BackendAddress {
    /// At an address.
    Ip(SocketAddr),
    /// At each address of a name.
    Name(HostName),
}

/// A name that a resolver is asked for, and a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostName {
    /// The name, in lower case.
    pub host: String,
    /// The TCP port, 1 to 65535.
    pub port: u16,
}

/// The most addresses of one name that are backends. What a name server says beyond them is left unused.
pub const MAX_ADDRESSES: usize = 256;

impl BackendAddress {
    /// The name to look up; `None` for an address.
    pub fn host(&self) -> Option<&str> {
        match self {
            BackendAddress::Ip(_) => None,
            BackendAddress::Name(name) => Some(&name.host),
        }
    }
}

impl fmt::Display for BackendAddress {
    /// `10.0.0.5:80`, `[2001:db8::1]:80`, `app.internal:80`; also what `Host` says.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BackendAddress::Ip(address) => address.fmt(f),
            BackendAddress::Name(HostName { host, port }) => write!(f, "{host}:{port}"),
        }
    }
}

impl From<SocketAddr> for BackendSetting {
    fn from(address: SocketAddr) -> BackendSetting {
        BackendSetting {
            address: BackendAddress::Ip(address),
            weight: 1,
        }
    }
}

impl fmt::Display for BackendSetting {
    /// As the config file has it: `10.0.0.5:80`, `app.internal:80 weight=3`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.weight {
            1 => self.address.fmt(f),
            weight => write!(f, "{} weight={weight}", self.address),
        }
    }
}

/// Smooth weighted round robin, as nginx has it: of as many turns in a row as the sum of the weights each backend has its
/// weight, and the turns of one with a high weight are spread among the others'.
#[derive(Debug, Default)]
pub struct WeightedTurns {
    /// What each is owed, by its number.
    owed: Vec<i64>,
}

impl WeightedTurns {
    /// The next of these backends, each given by its number and its weight; `None` if there are none.
    pub fn next(&mut self, backends: impl Iterator<Item = (usize, u16)>) -> Option<usize> {
        let mut sum = 0;
        let mut next = None::<usize>;
        for (number, weight) in backends {
            if number >= self.owed.len() {
                self.owed.resize(number + 1, 0);
            }
            self.owed[number] += i64::from(weight);
            sum += i64::from(weight);
            if next.is_none_or(|next| self.owed[number] > self.owed[next]) {
                next = Some(number);
            }
        }
        self.owed[next?] -= sum;
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(weights: &[u16], count: usize) -> Vec<usize> {
        let mut turns = WeightedTurns::default();
        let next = |_| turns.next(weights.iter().copied().enumerate()).unwrap();
        (0..count).map(next).collect()
    }

    #[test]
    fn equal_weights_are_one_after_the_other() {
        assert_eq!(turns(&[1, 1, 1], 6), [0, 1, 2, 0, 1, 2]);
        assert_eq!(turns(&[7, 7], 4), [0, 1, 0, 1]);
        assert_eq!(WeightedTurns::default().next([].into_iter()), None);
    }

    #[test]
    fn a_heavy_backend_has_its_part_spread_among_the_others() {
        assert_eq!(turns(&[5, 1, 1], 7), [0, 0, 1, 0, 2, 0, 0]);
        for weights in [&[1, 256][..], &[3, 2, 1], &[256, 255, 1], &[10]] {
            let sum: usize = weights.iter().map(|weight| usize::from(*weight)).sum();
            let taken = turns(weights, 3 * sum);
            for (number, weight) in weights.iter().enumerate() {
                let count = taken.iter().filter(|turn| **turn == number).count();
                assert_eq!(count, 3 * usize::from(*weight), "{number} of {weights:?}");
            }
        }
    }

    #[test]
    fn one_that_was_away_does_not_catch_up() {
        let mut turns = WeightedTurns::default();
        for _ in 0..100 {
            assert_eq!(turns.next([(0, 1)].into_iter()), Some(0));
        }
        let both = || [(0, 1), (1, 1)].into_iter();
        let taken: Vec<usize> = (0..4).map(|_| turns.next(both()).unwrap()).collect();
        assert_eq!(taken.iter().sum::<usize>(), 2, "{taken:?}");
    }
}
