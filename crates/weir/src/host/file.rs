//! Files that a user names, to be read whole. A name may lead to anything: to a FIFO that nobody writes to, a device without an
//! end, a core dump. Each of those is an error at once.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::statfs::{FsType, Statfs, fstatfs, statfs};

/// The file system of pipes without a name (PIPEFS_MAGIC of linux/magic.h).
const PIPEFS: FsType = FsType(0x5049_5045);

/// Reads a text file of at most so many bytes.
///
/// The pipe of a shell, as in `weir check <(make-config)`, is as good as a file: who made it writes to it. A FIFO with a name is
/// not: it may have no writer, and a reload would find it empty.
///
/// # Errors
/// As open(2) and read(2); it is no file, longer, or no UTF-8.
pub fn read_text(path: &Path, most_bytes: u64) -> io::Result<String> {
    // Before the open too: that alone makes some devices act.
    fault(&fs::metadata(path)?.file_type())?;
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits())
        .open(path)?;
    let kind = file.metadata()?.file_type();
    fault(&kind)?;
    if kind.is_fifo() {
        if has_name(fstatfs(&file)) {
            return Err(unfit("it is a FIFO, not a file"));
        }
        wait_for_bytes(&file)?;
    }
    let mut bytes = Vec::new();
    file.take(most_bytes + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most_bytes {
        let why = format!("it is longer than {most_bytes} bytes, the most that weir reads of it");
        return Err(unfit(&why));
    }
    String::from_utf8(bytes).map_err(|_| unfit("it is no UTF-8 text"))
}

/// Whether an open to read may wait for a program that writes: at a FIFO with a name, not at the pipe of a shell.
pub fn is_named_fifo(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|there| there.file_type().is_fifo()) && has_name(statfs(path))
}

fn has_name(file_system: nix::Result<Statfs>) -> bool {
    file_system.is_ok_and(|there| there.filesystem_type() != PIPEFS)
}

/// Reads wait from now on.
fn wait_for_bytes(file: &File) -> io::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(file.as_fd(), FcntlArg::F_GETFL)?);
    fcntl(file.as_fd(), FcntlArg::F_SETFL(flags - OFlag::O_NONBLOCK))?;
    Ok(())
}

fn fault(kind: &fs::FileType) -> io::Result<()> {
    if kind.is_dir() {
        Err(unfit("it is a directory, not a file"))
    } else if kind.is_char_device() || kind.is_block_device() {
        Err(unfit("it is a device, not a file"))
    } else if kind.is_socket() {
        Err(unfit("it is a socket, not a file"))
    } else {
        Ok(())
    }
}

fn unfit(why: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, why)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixListener;

    use nix::sys::stat::Mode;

    use super::*;

    fn fault_of(path: &Path) -> String {
        read_text(path, 100).unwrap_err().to_string()
    }

    #[test]
    fn what_is_no_file_is_an_error_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name| folder.path().join(name);
        nix::unistd::mkfifo(&at("fifo"), Mode::S_IRWXU).unwrap();
        let _listener = UnixListener::bind(at("socket")).unwrap();
        assert!(fault_of(&at("fifo")).contains("FIFO"));
        assert!(is_named_fifo(&at("fifo")));
        assert!(fault_of(&at("socket")).contains("socket"));
        assert!(fault_of(folder.path()).contains("directory"));
        assert!(fault_of(Path::new("/dev/zero")).contains("device"));
        // A link is what it leads to.
        std::os::unix::fs::symlink("/dev/zero", at("link")).unwrap();
        assert!(fault_of(&at("link")).contains("device"));
    }

    #[test]
    fn a_file_is_read_up_to_the_limit_and_not_beyond() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let read = |text: &str| {
            fs::write(&path, text).unwrap();
            read_text(&path, 100)
        };
        assert_eq!(read(&"x".repeat(100)).unwrap().len(), 100);
        // Also where the limit cuts a character.
        for text in ["x".repeat(101), "é".repeat(51), "x".repeat(100) + "é"] {
            assert!(
                read(&text)
                    .unwrap_err()
                    .to_string()
                    .contains("longer than 100 bytes")
            );
        }
        fs::write(&path, [0xff]).unwrap();
        assert!(fault_of(&path).contains("UTF-8"));
        // Longer than a disk, and of no place on one.
        File::create(&path).unwrap().set_len(1 << 40).unwrap();
        assert!(fault_of(&path).contains("longer"));
    }

    #[test]
    fn the_pipe_of_a_shell_is_as_good_as_a_file() {
        let (out, mut into) = io::pipe().unwrap();
        let writer = std::thread::spawn(move || into.write_all(b"from a program"));
        let path = format!("/dev/fd/{}", out.as_raw_fd());
        assert!(!is_named_fifo(Path::new(&path)));
        assert_eq!(read_text(Path::new(&path), 100).unwrap(), "from a program");
        writer.join().unwrap().unwrap();
    }
}
