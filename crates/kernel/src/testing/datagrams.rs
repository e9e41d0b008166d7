//! What the programs of QUIC take for a datagram: they are called by others that make it anew for each repetition
//! (bpf/tests/datagrams.bpf.c).

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use libbpf_rs::skel::OpenSkel;
use libbpf_rs::{MapCore, MapFlags, ProgramInput, ProgramMut};

use crate::error::{Result, of_libbpf};
use crate::object::open;
use crate::quic::Quic;

#[allow(missing_docs, clippy::all, clippy::undocumented_unsafe_blocks)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/datagrams.skel.rs"));
}

/// Which way a datagram goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// To the server.
    In,
    /// From it.
    Out,
}

/// A frame of which each repetition is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repeated {
    /// Its first 128 bytes are written anew each time; where it is shorter, it is left as it is.
    pub frame: Vec<u8>,
    /// Where eight of these bytes are a number that no other repetition has.
    pub counted_at: Option<usize>,
}

/// Measures the programs of one [`Quic`], in the network namespace of the calling thread.
pub struct DatagramBench {
    skel: skel::DatagramsSkel<'static>,
}

impl DatagramBench {
    /// Loads what calls the programs.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn load() -> Result<DatagramBench> {
        let failed = |e| of_libbpf("load the programs that measure others")(e);
        let open = open::<skel::DatagramsSkelBuilder>().map_err(failed)?;
        let skel = open.load().map_err(failed)?;
        let nothing = skel.progs.pass.as_fd().as_raw_fd().to_ne_bytes();
        let slot = 0u32.to_ne_bytes();
        skel.maps
            .nothing
            .update(&slot, &nothing, MapFlags::ANY)
            .map_err(failed)?;
        Ok(DatagramBench { skel })
    }

    /// Has the program of this way measured.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn choose(&mut self, quic: &Quic, way: Way) -> Result<()> {
        let programs = quic.programs();
        let program = match way {
            Way::In => programs.enter,
            Way::Out => programs.leave,
        };
        let (slot, program) = (0u32.to_ne_bytes(), program.as_raw_fd().to_ne_bytes());
        let subject = &self.skel.maps.subject;
        subject
            .update(&slot, &program, MapFlags::ANY)
            .map_err(of_libbpf("choose what is measured"))
    }

    /// Mean time of one repetition with the chosen program, and its last action: -1 pass, 2 drop, 7 redirect.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn subject(&mut self, of: &Repeated, repeat: u32) -> Result<(Duration, i32)> {
        self.set(of);
        run(&self.skel.progs.measure_subject, of, repeat)
    }

    /// The same with a program that passes all.
    ///
    /// # Errors
    /// As [`DatagramBench::subject`].
    pub fn nothing(&mut self, of: &Repeated, repeat: u32) -> Result<(Duration, i32)> {
        self.set(of);
        run(&self.skel.progs.measure_nothing, of, repeat)
    }

    /// The same with the kernel's own lookup of the socket, and nothing else. IPv4.
    ///
    /// # Errors
    /// As [`DatagramBench::subject`].
    pub fn lookup(&mut self, of: &Repeated, repeat: u32) -> Result<(Duration, i32)> {
        self.set(of);
        run(&self.skel.progs.measure_lookup, of, repeat)
    }

    fn set(&mut self, of: &Repeated) {
        let globals = self.skel.maps.bss_data.as_deref_mut();
        let globals = globals.expect("globals are mapped");
        let written = of.frame.len().min(globals.head.len());
        globals.head[..written].copy_from_slice(&of.frame[..written]);
        globals.frame_len = of.frame.len() as u32;
        globals.counted_at = of.counted_at.unwrap_or(0) as u32;
    }
}

fn run(program: &ProgramMut<'_>, of: &Repeated, repeat: u32) -> Result<(Duration, i32)> {
    let input = ProgramInput {
        data_in: Some(&of.frame),
        repeat,
        ..Default::default()
    };
    let output = program
        .test_run(input)
        .map_err(of_libbpf("measure a program"))?;
    Ok((output.duration, output.return_value as i32))
}
