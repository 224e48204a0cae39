//! Hostfiles: any text is hosts or an error that names the line; no host's words could be options of ssh.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code)]
#[path = "../../crates/cli/src/launch/hostfile.rs"]
mod hostfile;

fuzz_target!(|text: &str| match hostfile::parse(text) {
    Ok(hosts) => {
        for host in hosts {
            assert!(!host.name.is_empty() && !host.login.starts_with('-') && host.slots > 0, "{host:?}");
            assert!(host.login.ends_with(&host.name) && !host.login.contains(char::is_whitespace), "{host:?}");
            let port = host.port.map_or_else(String::new, |port| format!(":{port}"));
            let again = hostfile::parse(&format!("{}{port} slots={}", host.login, host.slots));
            assert_eq!(again.expect("what was read is a host"), [host]);
        }
    }
    Err(error) => assert!(error.to_string().contains("of a hostfile"), "{error}"),
});
