//! The SYN-flood filter: hosts with a thousand times more connections without data than with.

use std::hash::BuildHasher;
use std::net::Ipv6Addr;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::connection::Connection;

/// BHD18, Section III: so many times more connections without data than with, and at least so many.
const FLOOD_FACTOR: u64 = 1000;
const FLOOD_MIN: u32 = 1000;

/// Connections of each host.
#[derive(Debug, Default)]
pub(crate) struct Hosts {
    index: HashTable<u32>,
    all: Vec<Host>,
    hasher: DefaultHashBuilder,
}

#[derive(Debug, Clone, Copy)]
struct Host {
    address: Ipv6Addr,
    with_data: u32,
    without_data: u32,
}

impl Host {
    fn is_flood(&self) -> bool {
        let (with, without) = (u64::from(self.with_data), self.without_data);
        without >= FLOOD_MIN && u64::from(without) >= with * FLOOD_FACTOR
    }
}

impl Hosts {
    /// Counts a connection for both its hosts.
    pub fn add(&mut self, connection: &Connection) {
        let has_data = connection.has_data();
        for address in connection.ends.addresses() {
            let host = self.host(address);
            let count = match has_data {
                true => &mut host.with_data,
                false => &mut host.without_data,
            };
            *count = count.saturating_add(1);
        }
    }

    fn host(&mut self, address: Ipv6Addr) -> &mut Host {
        let Hosts { index, all, hasher } = self;
        let hash = hasher.hash_one(address);
        let entry = index.entry(
            hash,
            |&at| all[at as usize].address == address,
            |&at| hasher.hash_one(all[at as usize].address),
        );
        let at = match entry {
            hashbrown::hash_table::Entry::Occupied(entry) => *entry.get(),
            hashbrown::hash_table::Entry::Vacant(entry) => {
                let at = all.len() as u32;
                all.push(Host {
                    address,
                    with_data: 0,
                    without_data: 0,
                });
                // The closure that hashes anew sees the new host too: it is in the list already.
                entry.insert(at);
                at
            }
        };
        &mut all[at as usize]
    }

    /// The hosts among the ends of a connection that show the signs of a flood.
    pub fn floods(&self, connection: &Connection) -> impl Iterator<Item = Ipv6Addr> {
        let addresses = connection.ends.addresses();
        addresses.into_iter().filter(|&address| {
            let hash = self.hasher.hash_one(address);
            let found = self
                .index
                .find(hash, |&at| self.all[at as usize].address == address);
            found.is_some_and(|&at| self.all[at as usize].is_flood())
        })
    }

    /// Whether any host shows the signs of a flood.
    pub fn has_flood(&self) -> bool {
        self.all.iter().any(Host::is_flood)
    }

    /// Forgets hosts until at most `most` are left, those with the fewest connections first. How many were forgotten.
    pub fn forget(&mut self, most: usize) -> usize {
        let before = self.all.len();
        if before <= most {
            return 0;
        }
        let mut fewest = 1;
        while self.all.len() > most {
            self.all
                .retain(|host| host.with_data.saturating_add(host.without_data) > fewest);
            fewest *= 2;
        }
        self.all.shrink_to_fit();
        let Hosts { index, all, hasher } = self;
        *index = HashTable::with_capacity(all.len());
        for (at, host) in all.iter().enumerate() {
            index.insert_unique(hasher.hash_one(host.address), at as u32, |&at| {
                hasher.hash_one(all[at as usize].address)
            });
        }
        before - self.all.len()
    }
}
