//! Loads the classifier of `weir shape` (bpf/shape.bpf.c), which sends control segments to the high class of an HTB.
//!
//! A tc filter holds the program, and goes with the qdisc that it belongs to.

pub mod qdisc;
pub(crate) mod skel;

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use weir_core::aqm::{ByteRate, LimitParams};

use crate::error::{Error, Result, of_libbpf};
use crate::object::{self, open_in};
use crate::random::random;
use skel::{ShapeSkelBuilder, types};

/// Where the classifier sends packets, and what may overtake data. Classes are handles: major in the upper 16 bits.
#[derive(Debug, Clone, Copy)]
pub struct Classifier {
    /// Class of control segments.
    pub high: u32,
    /// Class of everything else.
    pub low: u32,
    /// Class of control segments over the limit.
    pub demoted: u32,
    /// FIN is a control segment as well.
    pub fin: bool,
    /// The limit; `None`: every control segment is high.
    pub limit: Option<LimitParams>,
}

impl Classifier {
    /// Loads a program of its own, with buckets of its own.
    ///
    /// # Errors
    /// [`Error::Denied`] without root, [`Error::Failed`] where the kernel does not take it.
    pub fn load(&self) -> Result<OwnedFd> {
        const WHAT: &str = "load the classifier of control segments";
        let mut memory = MaybeUninit::uninit();
        let mut open = open_in::<ShapeSkelBuilder>(&mut memory).map_err(of_libbpf(WHAT))?;
        let constants = open.maps.rodata_data.as_mut();
        constants.expect("the object has constants").params = self.params(random()? as u32);
        let loaded = object::load(open, WHAT)?;
        loaded
            .progs
            .shape_classify
            .as_fd()
            .try_clone_to_owned()
            .map_err(|e| Error::Failed {
                what: "keep the classifier of control segments".into(),
                cause: e.to_string(),
            })
    }

    /// As the program has them.
    pub(crate) fn params(&self, seed: u32) -> types::shape_params {
        let rate = |rate: ByteRate| types::byte_rate {
            ns_per_kib: rate.ns_per_kib,
            tolerance_ns: rate.tolerance_ns,
        };
        let unlimited = || rate(LimitParams::for_rate(1).all);
        types::shape_params {
            source: self
                .limit
                .map_or_else(unlimited, |limit| rate(limit.source)),
            all: self.limit.map_or_else(unlimited, |limit| rate(limit.all)),
            high: self.high,
            low: self.low,
            demoted: self.demoted,
            seed,
            fin: self.fin.into(),
            limited: self.limit.is_some().into(),
        }
    }
}
