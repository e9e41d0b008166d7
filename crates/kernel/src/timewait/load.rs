//! Loading bpf/timewait.bpf.c: at once for Ethernet devices, for devices without a link header when the first
//! appears.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use libbpf_rs::skel::{OpenSkel, Skel};

use super::skel::{TimewaitSkel, TimewaitSkelBuilder};
use crate::error::{Error, Result, of_libbpf};
use crate::object::{self, Share, SharedMaps, open, open_in};

pub(super) fn load(records: u32, prefixes: u32) -> Result<TimewaitSkel<'static>> {
    const WHAT: &str = "load the programs of timewait";
    let failed = || of_libbpf(WHAT);
    let mut open = open::<TimewaitSkelBuilder>().map_err(failed())?;
    open.maps
        .records
        .set_max_entries(records)
        .map_err(failed())?;
    open.maps
        .prefixes
        .set_max_entries(prefixes)
        .map_err(failed())?;
    object::load(open, WHAT)
}

/// The program for devices without a link header. It shares the maps of the first one.
#[derive(Default)]
pub(super) struct Bare(OnceLock<OwnedFd>);

impl Bare {
    pub(super) fn program(&self, first: &TimewaitSkel<'_>) -> Result<BorrowedFd<'_>> {
        if let Some(program) = self.0.get() {
            return Ok(program.as_fd());
        }
        let program = load_beside(first)?;
        Ok(self.0.get_or_init(|| program).as_fd())
    }
}

fn load_beside(first: &TimewaitSkel<'_>) -> Result<OwnedFd> {
    const WHAT: &str = "load a further program of timewait";
    let failed = || of_libbpf(WHAT);
    let mut storage = MaybeUninit::uninit();
    let mut open = open_in::<TimewaitSkelBuilder>(&mut storage).map_err(failed())?;
    let constants = open.maps.rodata_data.as_deref_mut();
    constants.expect("it has constants").link_header = 0;
    open.progs.timewait_sweep.set_autoload(false);
    open.progs.timewait_ops.set_autoload(false);
    open.progs.timewait_mark.set_autoload(false);
    open.progs.timewait_ask.set_autoload(false);
    SharedMaps::of(first.object())?
        .give_to(open.open_object_mut(), Share::Variables)
        .map_err(failed())?;
    let loaded = object::load(open, WHAT)?;
    loaded
        .progs
        .timewait_tc
        .as_fd()
        .try_clone_to_owned()
        .map_err(|e| Error::Failed {
            what: "keep a further program of timewait".into(),
            cause: e.to_string(),
        })
}
