//! Headers of the PROXY protocol.

use weir_proxy::proxy_protocol::{ProxyHeader, ProxyProtocol, read, write};

/// The bytes are the first of a connection.
pub fn run(data: &[u8]) {
    let whole = read(data);
    for cut in 0..data.len().min(300) {
        match read(&data[..cut]) {
            Ok(None) => {}
            // Once there is a header, or can be none, more bytes change nothing.
            part => assert_eq!(part, whole, "{cut} bytes"),
        }
    }
    let Ok(Some(ProxyHeader { len, endpoints })) = whole else {
        return;
    };
    assert!(len <= data.len());
    for version in [ProxyProtocol::V1, ProxyProtocol::V2] {
        let mut written = Vec::new();
        write(version, endpoints, &mut written);
        let len = written.len();
        assert_eq!(read(&written), Ok(Some(ProxyHeader { len, endpoints })));
    }
}
