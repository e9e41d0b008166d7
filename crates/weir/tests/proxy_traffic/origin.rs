//! A plain HTTP/1.1 origin for real clients, one thread a connection.
//!
//! `GET /length/N`, `/chunked/N` and `/close/N` reply with N bytes in that framing; `POST /echo`
//! replies with the request's body.

use std::io::{BufRead, BufReader, Read, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

/// Serves connections until the test ends.
pub fn serve(listener: TcpListener) {
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone()?);
                while serve_one(&mut reader, &stream)? {}
                Result::Ok(())
            });
        }
    });
}

/// One exchange; says whether the connection goes on.
fn serve_one(reader: &mut BufReader<TcpStream>, mut stream: &TcpStream) -> Result<bool> {
    let Some(first) = line(reader)? else {
        return Ok(false);
    };
    let (mut length, mut chunked) = (0, false);
    while let Some(field) = line(reader)?.filter(|field| !field.is_empty()) {
        let (name, value) = field.split_once(':').unwrap();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().unwrap(),
            "transfer-encoding" => chunked = true,
            "expect" => stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?,
            _ => {}
        }
    }
    let sent = match chunked {
        true => chunks(reader)?,
        false => exactly(reader, length)?,
    };
    let words: Vec<&str> = first.split(' ').collect();
    let path: Vec<&str> = words[1].trim_start_matches('/').split('/').collect();
    let body = match path.get(1) {
        Some(length) => pattern(length.parse().unwrap()),
        None => sent,
    };
    let framing = path[0];
    stream.write_all(head(framing, body.len()).as_bytes())?;
    if words[0] != "HEAD" {
        match framing {
            "chunked" => write_chunks(stream, &body)?,
            _ => stream.write_all(&body)?,
        }
    }
    Ok(framing != "close")
}

fn head(framing: &str, length: usize) -> String {
    let field = match framing {
        "chunked" => "Transfer-Encoding: chunked".into(),
        "close" => "Connection: close".into(),
        _ => format!("Content-Length: {length}"),
    };
    format!("HTTP/1.1 200 OK\r\n{field}\r\n\r\n")
}

fn write_chunks(mut stream: &TcpStream, body: &[u8]) -> Result<()> {
    for chunk in body.chunks(10_007) {
        write!(stream, "{:x}\r\n", chunk.len())?;
        stream.write_all(chunk)?;
        stream.write_all(b"\r\n")?;
    }
    stream.write_all(b"0\r\n\r\n")
}

fn line(reader: &mut impl BufRead) -> Result<Option<String>> {
    let mut line = String::new();
    let read = reader.read_line(&mut line)?;
    Ok((read > 0).then(|| line.trim_end().to_owned()))
}

fn exactly(reader: &mut impl Read, length: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    reader.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn chunks(reader: &mut BufReader<TcpStream>) -> Result<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let size = line(reader)?.unwrap_or_default();
        let size = usize::from_str_radix(&size, 16).unwrap();
        all.extend(exactly(reader, size)?);
        line(reader)?;
        if size == 0 {
            return Ok(all);
        }
    }
}

/// Bytes that are not alike from page to page.
fn pattern(length: usize) -> Vec<u8> {
    let byte = |index: usize| (index ^ (index >> 8) ^ (index >> 16)) as u8;
    (0..length).map(byte).collect()
}
