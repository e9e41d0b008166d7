//! What loading has in common for all BPF objects, and what they share at run time: maps, memory and rings.

#[cfg(feature = "testing")]
pub(crate) mod btf;
pub(crate) mod iteration;
mod mapped;
pub(crate) mod percpu;
mod plain;
mod refusal;
mod ring;

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, Object, OpenObject};

use crate::error::{Error, Result, of_libbpf};

pub(crate) use mapped::Mapped;
pub(crate) use plain::{Plain, plain};
pub(crate) use ring::{Ring, drain};

/// Opens an object whose skeleton lives as long as the process: its memory is not given back.
pub(crate) fn open<B>() -> libbpf_rs::Result<B::Output>
where
    B: SkelBuilder<'static> + Default,
{
    open_in::<B>(Box::leak(Box::new(MaybeUninit::uninit())))
}

/// Opens an object in the caller's memory.
pub(crate) fn open_in<'a, B>(
    memory: &'a mut MaybeUninit<OpenObject>,
) -> libbpf_rs::Result<B::Output>
where
    B: SkelBuilder<'a> + Default,
{
    refusal::listen();
    #[cfg_attr(not(feature = "testing"), expect(unused_mut))]
    let mut builder = B::default();
    #[cfg(feature = "testing")]
    btf::choose(builder.object_builder_mut())?;
    builder.open(memory)
}

/// Gives the programs of an object to the kernel.
///
/// # Errors
/// `what` cannot be done: [`Error::Failed`] with what the verifier says where it refuses a program, else as of [`of_libbpf`].
pub(crate) fn load<'a, O: OpenSkel<'a>>(open: O, what: &str) -> Result<O::Output> {
    refusal::take();
    open.load().map_err(|e| match refusal::take() {
        // Its errno is often EACCES, and has nothing to do with rights.
        Some(cause) => Error::Failed {
            what: what.into(),
            cause,
        },
        None => of_libbpf(what)(e),
    })
}

/// Maps of a loaded object, by name, for other objects that declare them too.
pub struct SharedMaps(BTreeMap<String, OwnedFd>);

/// Which maps an object takes from another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Share {
    /// Those that both declare.
    Declared,
    /// Also the global variables, which must be the same in both.
    Variables,
    /// Also the constants, likewise.
    #[cfg(feature = "testing")]
    Constants,
}

impl SharedMaps {
    /// All maps of this object.
    ///
    /// # Errors
    /// No descriptors are left.
    pub(crate) fn of(object: &Object) -> Result<SharedMaps> {
        let keep = |map: libbpf_rs::Map<'_>| {
            let fd = map.as_fd().try_clone_to_owned();
            let fd = fd.map_err(|e| Error::Failed {
                what: "share the maps of a BPF object".into(),
                cause: e.to_string(),
            })?;
            Ok((shared_name(&map.name().to_string_lossy()), fd))
        };
        object
            .maps()
            .map(keep)
            .collect::<Result<_>>()
            .map(SharedMaps)
    }

    /// Those of these names only.
    pub(crate) fn only(mut self, names: &[&str]) -> SharedMaps {
        self.0.retain(|name, _| names.contains(&&**name));
        self
    }

    /// Has the object use these maps in place of its own of the same name.
    pub(crate) fn give_to(&self, object: &mut OpenObject, share: Share) -> libbpf_rs::Result<()> {
        for mut map in object.maps_mut() {
            let name = shared_name(&map.name().to_string_lossy());
            let shared = match name.split_once('.') {
                None => true,
                Some(("", "bss" | "data")) => share != Share::Declared,
                #[cfg(feature = "testing")]
                Some(("", "rodata")) => share == Share::Constants,
                Some(_) => false,
            };
            if let Some(fd) = self.0.get(&name).filter(|_| shared) {
                map.reuse_fd(fd.as_fd())?;
            }
        }
        Ok(())
    }
}

/// Names of maps with global variables begin with the object's name, which differs: `guard_bp.bss`.
fn shared_name(name: &str) -> String {
    match name.find('.') {
        Some(dot) => name[dot..].to_owned(),
        None => name.to_owned(),
    }
}
