//! Memory for the heads that the proxy writes, lent for one exchange.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

/// Vectors kept for the next exchange.
const KEPT: usize = 64;

/// The thread's memory for heads.
#[derive(Default)]
pub struct Scratch(Rc<RefCell<Vec<Vec<u8>>>>);

/// An empty vector on loan.
pub struct Head {
    bytes: Vec<u8>,
    pool: Rc<RefCell<Vec<Vec<u8>>>>,
}

impl Scratch {
    /// Lends an empty vector.
    pub fn lend(&self) -> Head {
        Head {
            bytes: self.0.borrow_mut().pop().unwrap_or_default(),
            pool: self.0.clone(),
        }
    }
}

impl Deref for Head {
    type Target = Vec<u8>;

    fn deref(&self) -> &Vec<u8> {
        &self.bytes
    }
}

impl DerefMut for Head {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }
}

impl Drop for Head {
    fn drop(&mut self) {
        let mut pool = self.pool.borrow_mut();
        if pool.len() < KEPT {
            self.bytes.clear();
            pool.push(std::mem::take(&mut self.bytes));
        }
    }
}
