//! For tests: objects are relocated against the BTF of another kernel, which lacks fields that this one has.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use libbpf_rs::ObjectBuilder;

thread_local! {
    static OTHER: RefCell<Option<PathBuf>> = const { RefCell::new(None) };
}

/// Does some work with this file in place of the running kernel's BTF, for objects that this thread opens.
pub(crate) fn within<T>(file: &Path, work: impl FnOnce() -> T) -> T {
    OTHER.set(Some(file.to_owned()));
    let done = work();
    OTHER.set(None);
    done
}

pub(super) fn choose(builder: &mut ObjectBuilder) -> libbpf_rs::Result<()> {
    if let Some(file) = OTHER.with_borrow(Clone::clone) {
        builder.btf_custom_path(file)?;
    }
    Ok(())
}
