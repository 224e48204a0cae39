//! Cluster files: any text is a cluster file or an error. A file that was read can be written and read again
//! without a change.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringpull_allreduce::communicator::Cluster;

fuzz_target!(|text: &str| {
    match Cluster::parse(text) {
        Ok(cluster) => {
            let again = Cluster::parse(&cluster.text());
            // Names may have characters that no host's name has, which are not written as TOML wants them.
            let are_names = |name: &str| name.chars().all(|letter| !letter.is_control());
            let racks = cluster.hosts.iter().filter_map(|host| host.rack.as_deref());
            if cluster.hosts.iter().map(|host| &host.name[..]).chain(racks).all(are_names) {
                assert_eq!(again.as_ref(), Ok(&cluster), "{}", cluster.text());
            }
        }
        Err(words) => assert!(!words.is_empty()),
    }
});
