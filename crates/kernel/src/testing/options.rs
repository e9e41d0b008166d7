//! Somebody else's program that writes header options (bpf/tests/options.bpf.c).

use std::os::fd::AsRawFd;

use libbpf_rs::Link;
use libbpf_rs::skel::OpenSkel;

use crate::cgroups::cgroup_root;
use crate::error::{Error, Result, of_libbpf};
use crate::object::open;

#[allow(missing_docs, clippy::all, clippy::undocumented_unsafe_blocks)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/options.skel.rs"));
}

/// The program, at the root of the cgroups.
pub struct OptionWriter {
    skel: skel::OptionsSkel<'static>,
    _link: Link,
}

impl OptionWriter {
    /// Attaches it for the connections of a port.
    ///
    /// # Errors
    /// There is no root of the cgroups, or the kernel's.
    pub fn attach(port: u16) -> Result<OptionWriter> {
        let failed = |e| of_libbpf("attach a program that writes options")(e);
        let root = cgroup_root().ok_or_else(|| Error::Failed {
            what: "open the root of the cgroups".into(),
            cause: "there is none".into(),
        })?;
        let mut open = open::<skel::OptionsSkelBuilder>().map_err(failed)?;
        let constants = open.maps.rodata_data.as_deref_mut();
        constants.expect("a constant is in it").port = port.into();
        let skel = open.load().map_err(failed)?;
        let link = skel.progs.write_options.attach_cgroup(root.as_raw_fd());
        Ok(OptionWriter {
            _link: link.map_err(failed)?,
            skel,
        })
    }

    /// Options that it has written.
    pub fn written(&self) -> u32 {
        let globals = self.skel.maps.bss_data.as_deref();
        globals.expect("globals are mapped").options_written
    }
}
