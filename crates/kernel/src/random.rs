//! Random numbers for keys and seeds, from the kernel.

use crate::error::{Result, of_errno};
use crate::object::Plain;

/// 64 random bits.
///
/// # Errors
/// getrandom(2) fails, which it does not on kernels that weir runs on.
pub fn random() -> Result<u64> {
    let mut number = 0u64;
    let bytes = number.bytes_mut();
    // SAFETY: getrandom(2) writes at most the given length into the buffer.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got != bytes.len() as isize {
        return Err(of_errno("get random bytes"));
    }
    Ok(number)
}
