//! Certificates and TLS: the server's is made anew for each server, and clients take every one.

use std::sync::Arc;

use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn_proto::{ClientConfig, NoneTokenStore, ServerConfig};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::version::TLS13;
use rustls::{DigitallySignedStruct, SignatureScheme};

use super::{KEEP_ALIVE, transport};
use crate::error::{Context, Result};

/// Name of all servers: in the certificate and in what clients ask for.
pub(super) const SERVER_NAME: &str = "localhost";

const SERVER: &str = "cannot make the configuration of a QUIC server";
const CLIENT: &str = "cannot make the configuration of a QUIC client";

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// A server with a certificate of its own, signed by itself.
pub(super) fn server_config(alpn: &[u8]) -> Result<Arc<ServerConfig>> {
    let own = rcgen::generate_simple_self_signed([SERVER_NAME.to_owned()]).context(SERVER)?;
    let key = PrivatePkcs8KeyDer::from(own.signing_key.serialize_der());
    let mut tls = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .context(SERVER)?
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.der().clone()], key.into())
        .context(SERVER)?;
    tls.alpn_protocols = vec![alpn.to_vec()];
    tls.send_tls13_tickets = 0;
    let tls = QuicServerConfig::try_from(tls).context(SERVER)?;
    let mut config = ServerConfig::with_crypto(Arc::new(tls));
    config.transport_config(transport(None));
    Ok(Arc::new(config))
}

/// A client for which every connection is the first one: it keeps neither tickets nor tokens.
pub(super) fn client_config(alpn: &[u8]) -> Result<ClientConfig> {
    let tls = QuicClientConfig::try_from(web_config(alpn)?).context(CLIENT)?;
    let mut config = ClientConfig::new(Arc::new(tls));
    config
        .transport_config(transport(Some(KEEP_ALIVE)))
        .token_store(Arc::new(NoneTokenStore));
    Ok(config)
}

/// The same over TCP.
pub(super) fn web_config(alpn: &[u8]) -> Result<Arc<rustls::ClientConfig>> {
    let provider = provider();
    let mut tls = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])
        .context(CLIENT)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer(provider)))
        .with_no_client_auth();
    tls.alpn_protocols = vec![alpn.to_vec()];
    tls.resumption = Resumption::disabled();
    Ok(Arc::new(tls))
}

/// Takes every certificate and signature: the servers are the test's own, and a client's CPU time is better spent on more
/// clients.
#[derive(Debug)]
struct AnyServer(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = self.0.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}
