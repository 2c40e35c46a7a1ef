//! The mistakes of other libraries for etcd, and the faults that they do not survive.

use palisade::engine::etcd::{Config, survey};
use palisade::{Loss, Misuse, Options};
use palisade_testbench::credentials::{self, Authority, Credentials};
use palisade_testbench::servers::{Etcd, EtcdCluster, free_port};
use tempfile::TempDir;

use super::fixture::{
    LONG_TTL, alone, check, inspect, lost, shared, take, taken, taking, token, until_idle, until_queued,
};

/// The token is the revision that created the holder's own key, and no other revision.
#[test]
fn a_token_is_the_create_revision_of_the_claim() {
    check(async {
        let fixture = shared();
        let client = fixture.client(LONG_TTL).await;
        let first = take(&client, "lock").await;
        let waiter = taking(&client, "lock");
        until_queued(&client, "lock", 1).await;
        fixture.etcd().ctl(&["put", "another", "key"]);
        first.release().await.expect("released");
        let second = taken(waiter).await;
        assert_eq!(fixture.create_revision("lock"), token(&second).get());
    });
}

/// Publishing a value and marking a set rewrite the key, and change neither its place nor its token.
#[test]
fn a_claim_that_is_rewritten_keeps_its_place_and_its_token() {
    check(async {
        let fixture = shared();
        let client = fixture.client(LONG_TTL).await;
        let leader = client.election("boss").campaign("one").await.expect("a leader");
        let waiter = taking(&client, "boss");
        until_queued(&client, "boss", 1).await;
        leader.publish("two").await.expect("published");
        assert_eq!(fixture.create_revision("boss"), leader.token().expect("it is held").get());
        leader.release().await.expect("released");
        taken(waiter).await;
    });
}

/// A waiter whose lease dies in the queue is told, and never gets the lock (etcd #11456).
#[test]
fn a_waiter_whose_lease_is_revoked_is_told_at_once_and_not_granted() {
    check(async {
        let fixture = shared();
        let (holder, client) = (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await);
        let held = take(&holder, "lock").await;
        let waiter = taking(&client, "lock");
        until_queued(&holder, "lock", 1).await;
        let session = inspect(&holder, "lock").await.expect("it is held").waiters[0].session;
        fixture.etcd().ctl(&["lease", "revoke", &format!("{:x}", session.get())]);
        assert_eq!(lost(waiter).await, Loss::Expired);
        held.release().await.expect("released");
        until_idle(&holder, "lock").await;
    });
}

/// The claim of a waiter is deleted at the moment at which it becomes the first: the read after the wait notices it.
#[test]
fn a_waiter_whose_claim_is_gone_queues_again() {
    check(async {
        let fixture = shared();
        let (holder, client) = (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await);
        let held = take(&holder, "lock").await;
        let waiter = taking(&client, "lock");
        until_queued(&holder, "lock", 1).await;
        let session = inspect(&holder, "lock").await.expect("it is held").waiters[0].session;
        fixture.etcd().ctl(&["del", "--prefix", &format!("{}/lock/lock\t{:014x}", fixture.prefix, session.get())]);
        let (first, deleted) = (token(&held), fixture.revision());
        held.release().await.expect("released");
        let granted = taken(waiter).await;
        assert!(token(&granted) > first && token(&granted).get() > deleted, "it has the token of the deleted claim");
    });
}

/// The end of a holder's lease is reported at once, not only at the next keep-alive.
#[test]
fn a_holder_whose_lease_is_revoked_is_told_at_once() {
    check(async {
        let fixture = shared();
        let client = fixture.client(LONG_TTL).await;
        let held = take(&client, "lock").await;
        let session = inspect(&client, "lock").await.expect("it is held").holders[0].session.expect("a session");
        fixture.etcd().ctl(&["lease", "revoke", &format!("{:x}", session.get())]);
        assert_eq!(held.lost().await, Loss::Expired);
    });
}

/// Other data at the address, as after a restored backup: every guard is lost, and the client does not go on.
#[test]
#[ignore = "long: several seconds"]
fn a_server_that_starts_empty_is_noticed() {
    check(async {
        let mut fixture = alone();
        let client = fixture.client(LONG_TTL).await;
        let held = take(&client, "lock").await;
        fixture.restart_empty();
        let loss = held.lost().await;
        assert!(matches!(loss, Loss::DataLost { .. }), "{loss:?}");
        let error = client.lock("lock").acquire().await.expect_err("it has lost data");
        assert!(error.to_string().contains("went back"), "{error}");
    });
}

/// `etcdctl lock` of the same name uses other keys: the two do not exclude each other, and do not disturb each other.
#[test]
fn etcdctl_lock_uses_other_keys() {
    check(async {
        let fixture = shared();
        let client = fixture.client(LONG_TTL).await;
        let held = take(&client, "lock").await;
        assert_eq!(fixture.etcd().ctl(&["lock", "lock", "echo", "locked"]), "locked");
        assert_eq!(
            fixture.etcd().ctl(&["lock", &format!("{}/lock/lock", fixture.prefix), "echo", "locked"]),
            "locked"
        );
        held.token().expect("it is held");
        assert!(fixture.client(LONG_TTL).await.lock("lock").try_acquire().await.expect("an answer").is_none());
    });
}

/// A set of 64 locks, the most that there can be, fits into the transactions of etcd.
#[test]
fn the_largest_set_fits_into_a_transaction() {
    check(async {
        let fixture = shared();
        let (client, other) = (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await);
        let names: Vec<_> = (0..64).map(|number| format!("set/{number}")).collect();
        let all = client.lock_all(&names).acquire().await.expect("they are free");
        let waiting = {
            let (other, names) = (other.clone(), names.clone());
            tokio::spawn(async move { other.lock_all(&names).acquire().await })
        };
        until_queued(&client, "set/63", 1).await;
        all.release().await.expect("released");
        let all = waiting.await.expect("no panic").expect("its turn comes");
        other.force_release("set/5", "a test").await.expect("it is held");
        assert!(matches!(all.lost().await, Loss::ForcedBy { .. }));
        until_idle(&client, "set/63").await;
    });
}

/// etcd walks over the names of deleted keys, so that a name for each acquire would make a lock slower and slower.
#[test]
fn the_keys_of_released_claims_are_used_again() {
    check(async {
        let fixture = alone();
        let client = fixture.client(LONG_TTL).await;
        let keys = || {
            let found = fixture.etcd().ctl(&["get", "--prefix", "--keys-only", &format!("{}/lock/", fixture.prefix)]);
            found.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect::<Vec<_>>()
        };
        let held = take(&client, "lock").await;
        let first = keys();
        assert_eq!(first.len(), 1);
        let waiting = taking(&client, "lock");
        until_queued(&client, "lock", 1).await;
        assert_eq!((keys().len(), &keys()[..1]), (2, &first[..]));
        held.release().await.expect("it is held");
        let second = taken(waiting).await;
        // The lower place is free again, and then the other one.
        let waiting = taking(&client, "lock");
        until_queued(&client, "lock", 1).await;
        assert_eq!((keys().len(), &keys()[..1]), (2, &first[..]));
        second.release().await.expect("it is held");
        drop(taken(waiting).await);
        until_idle(&client, "lock").await;
        for _ in 0..3 {
            let held = take(&client, "lock").await;
            assert_eq!(keys(), first);
            held.release().await.expect("it is held");
            assert!(client.lock("lock").try_acquire().await.expect("an answer").is_some());
            until_idle(&client, "lock").await;
        }
    });
}

/// The right to a prefix is enough, and another one is refused with a message that says so.
#[test]
#[ignore = "long: several seconds"]
fn a_user_needs_the_right_to_the_prefix_only() {
    check(async {
        let fixture = alone();
        let ctl = |words: &str| fixture.etcd().ctl(&words.split(' ').collect::<Vec<_>>());
        ctl("user add root:xyzzy");
        ctl("user grant-role root root");
        ctl("role add locks");
        ctl("role grant-permission locks --prefix=true readwrite palisade/");
        ctl("user add app:secret");
        ctl("user grant-role app locks");
        ctl("auth enable");
        let url = |user: &str, prefix: &str| format!("etcd://{user}@{}/{prefix}", fixture.address);
        let config = Config::parse(url("app:secret", "").trim_start_matches("etcd:")).expect("a URL");
        assert_eq!(survey(&config).await.expect("it answers").is_open, Some(false));
        let client = Options::new().connect(&url("app:secret", "")).await.expect("a client");
        let held = take(&client, "lock").await;
        held.release().await.expect("released");
        for (url, remedy) in [
            (url("app:xyzzy", ""), "the user or its password is wrong"),
            (url("stranger:xyzzy", ""), "the user or its password is wrong"),
            (url("app:secret", "other"), "etcdctl role grant-permission ROLE --prefix=true readwrite other/"),
            (fixture.url(), "name a user"),
        ] {
            let error = Options::new().connect(&url).await.expect_err("it is not allowed");
            let text = error.to_string();
            assert!(!error.is_retryable() && text.contains("does not let this client in"), "{text}");
            assert!(text.contains(remedy), "{url}: {text}");
            assert!(!text.contains("xyzzy") && !text.contains("secret"), "{text}");
        }
    });
}

#[test]
fn a_user_of_an_etcd_without_authentication_is_told() {
    check(async {
        let fixture = shared();
        let url = format!("etcd://app:xyzzy@{}", fixture.address);
        let error = Options::new().connect(&url).await.expect_err("there are no users").to_string();
        assert!(error.contains("leave the user out") && error.contains("etcdctl auth enable"), "{error}");
    });
}

/// Each message has the cause, and a remedy for that cause only.
#[test]
fn an_etcd_that_cannot_be_reached_is_explained() {
    check(async {
        let (fixture, folder) = (shared(), tempfile::tempdir().expect("a folder"));
        drop(Credentials::new(folder.path()));
        let ca = folder.path().join("ca.pem").display().to_string();
        let unused = free_port().expect("a port");
        for (url, cause, remedy, other) in [
            ("etcd://nosuchhost.invalid".to_owned(), "its name", "address", "etcds://"),
            (format!("etcd://{unused}"), "refused", "Is it running", "etcds://"),
            (format!("etcds://{unused}?ca={ca}"), "refused", "Is it running", "cert=FILE"),
            (format!("etcds://{}?ca={ca}", fixture.address), "may not encrypt", "use etcd://", "etcds://"),
            (format!("etcds://{}?ca={ca}", fixture.address), "client certificate", "cert=FILE", "etcds://"),
        ] {
            let error = palisade::connect(&url).await.expect_err("it cannot be used").to_string();
            assert!(error.contains(cause) && error.contains(remedy) && !error.contains(other), "{url}: {error}");
        }
    });
}

/// The member that runs answers nothing. The message says what is missing, and names the members that are down.
#[test]
#[ignore = "long: several seconds"]
fn a_cluster_without_a_majority_is_explained() {
    check(async {
        let folder = tempfile::tempdir().expect("a folder");
        let mut cluster = EtcdCluster::start(folder.path()).unwrap_or_else(|absent| panic!("{absent}"));
        let addresses: Vec<_> = cluster.members.iter().map(|member| member.address.to_string()).collect();
        cluster.members.drain(1..);
        for url in [addresses.join(","), addresses[0].clone()] {
            let error = palisade::connect(&format!("etcd://{url}")).await.expect_err("there is no majority");
            let text = error.to_string();
            assert!(text.contains(&format!("etcd at {}: ", addresses[0])) && error.is_retryable(), "{text}");
            assert!(text.contains("majority"), "{text}");
            let named = addresses[1..].iter().all(|address| text.contains(address));
            assert_eq!(named, url.contains(','), "{text}");
        }
    });
}

/// Tokens are raised for clients that are connected already, too.
#[test]
fn raised_tokens_hold_for_clients_that_do_not_know_yet() {
    check(async {
        let fixture = shared();
        let (client, other) = (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await);
        let held = take(&other, "lock").await;
        let above = palisade::Token::new(1 << 40).expect("a token");
        let error = client.raise_tokens(above).await.expect_err("a lock is held with a lower token");
        assert!(error.to_string().contains("such as 'lock'") && !error.may_have_taken_effect(), "{error}");
        held.release().await.expect("released");
        client.raise_tokens(above).await.expect("raised");
        assert!(token(&take(&other, "lock").await) > above);
        assert!(token(&take(&other, "another").await) > above);
    });
}

/// A semaphore in use is not resized, and the refusal says so.
#[test]
fn a_resize_is_refused() {
    check(async {
        let fixture = shared();
        let client = fixture.client(LONG_TTL).await;
        let held = client.semaphore("gpu", 2).acquire().await.expect("a permit");
        let error = client.resize("gpu", 3).await.expect_err("it is not offered");
        assert!(matches!(error.kind(), palisade::ErrorKind::Unsupported { .. }), "{error}");
        let error = client.semaphore("gpu", 3).acquire().await.expect_err("another number of permits");
        assert!(matches!(error.kind(), palisade::ErrorKind::Misuse(Misuse::Refused(_))), "{error}");
        held.release().await.expect("released");
        client.semaphore("gpu", 3).acquire().await.expect("it is idle, so any number will do");
    });
}

/// Starts an etcd with TLS.
fn encrypted(folder: &TempDir, needs_certificate: bool) -> Etcd {
    drop(Credentials::new(folder.path()));
    Etcd::start_encrypted(folder.path(), needs_certificate).unwrap_or_else(|absent| panic!("{absent}"))
}

/// A client certificate protects nothing that etcd does not require.
#[test]
fn a_survey_says_whether_clients_need_credentials() {
    check(async {
        for needs_certificate in [false, true] {
            let folder = tempfile::tempdir().expect("a folder");
            let server = encrypted(&folder, needs_certificate);
            let url = format!("//127.0.0.1:{}?{}", server.address.port(), credentials::options(folder.path()));
            let seen = survey(&Config::parse_encrypted(&url).expect("a URL")).await.expect("it answers");
            assert_eq!(seen.is_open, Some(!needs_certificate));
        }
    });
}

#[test]
fn an_encrypted_connection_is_used_and_verified() {
    check(async {
        let folder = tempfile::tempdir().expect("a folder");
        let server = encrypted(&folder, true);
        let port = server.address.port();
        let credentials = credentials::options(folder.path());
        let connect = async |host: &str| {
            let options = Options::new().ttl(LONG_TTL);
            options.connect(&format!("etcds://{host}:{port}?{credentials}")).await.expect("a client")
        };
        let (alice, bob) = (connect("localhost").await, connect("127.0.0.1").await);
        let held = take(&alice, "lock").await;
        let waiting = taking(&bob, "lock");
        until_queued(&alice, "lock", 1).await;
        held.release().await.expect("it is held");
        drop(taken(waiting).await);

        // No client certificate; an authority that did not issue the server's; no TLS.
        let ca = folder.path().join("ca.pem").display().to_string();
        let stranger = tempfile::tempdir().expect("a folder");
        Authority::new("a stranger").publish(stranger.path(), "ca.pem");
        for (url, word) in [
            (format!("etcds://127.0.0.1:{port}?ca={ca}"), "cert=FILE"),
            (format!("etcds://127.0.0.1:{port}?ca={}/ca.pem", stranger.path().display()), "ca=FILE"),
            (format!("etcds://127.0.0.1:{port}?ca=/nowhere/ca.pem"), "/nowhere/ca.pem"),
            (format!("etcd://127.0.0.1:{port}"), "etcds://"),
        ] {
            let error = palisade::connect(&url).await.map(|_: palisade::Palisade| ()).expect_err("it is not let in");
            assert!(error.to_string().contains(word), "{url}: {error}");
        }
    });
}
