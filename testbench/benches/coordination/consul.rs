//! Consul: our locks beside the recipe in its documentation: a session, `?acquire=` on one key, and a blocking query on that
//! key when it is held. That recipe has no queue: all waiters wake up at each release.
//! <https://developer.hashicorp.com/consul/docs/dynamic-app-config/sessions/application-leader-election>

use std::time::Duration;

use palisade_testbench::servers;
use serde_json::Value;

use crate::driver::{Contender, ROUNDS, Sample, WORKLOADS, Workload, sample, show};
use crate::ours::{lock, ours, ours_in_one};

/// A client of the recipe, with its session.
struct Recipe {
    http: reqwest::Client,
    api: String,
    session: String,
    lock: String,
}

impl Recipe {
    async fn connect(api: &str, lock: String) -> Recipe {
        let (http, api) = (reqwest::Client::new(), api.to_owned());
        let request = http.put(format!("{api}/session/create")).body(r#"{"TTL": "30s"}"#);
        let answer: Value = serde_json::from_str(&request.send().await.unwrap().text().await.unwrap()).unwrap();
        let session = answer["ID"].as_str().unwrap().to_owned();
        Recipe { http, api, session, lock }
    }

    async fn put(&self, what: &str) -> bool {
        let url = format!("{}/kv/recipe/{}?{what}={}", self.api, self.lock, self.session);
        let answer = self.http.put(url).send().await.unwrap();
        answer.error_for_status().unwrap().text().await.unwrap() == "true"
    }

    /// Waits until no session has the key.
    async fn until_free(&self) {
        let mut index = "0".to_owned();
        loop {
            let url = format!("{}/kv/recipe/{}?index={index}&wait=60s", self.api, self.lock);
            let answer = self.http.get(url).send().await.unwrap();
            index = answer.headers()["x-consul-index"].to_str().unwrap().to_owned();
            let keys: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
            if keys[0]["Session"].is_null() {
                return;
            }
        }
    }
}

impl Contender for Recipe {
    async fn acquire(&mut self) {
        while !self.put("acquire").await {
            self.until_free().await;
        }
    }

    async fn release(&mut self) {
        assert!(self.put("release").await);
    }

    async fn leave(self) {
        self.http.put(format!("{}/session/destroy/{}", self.api, self.session)).send().await.unwrap();
    }
}

async fn recipe(api: &str, workload: &Workload, length: Duration) -> Sample {
    let mut contenders = Vec::new();
    for number in 0..workload.clients {
        contenders.push(Recipe::connect(api, lock(number, workload.is_hot)).await);
    }
    sample(contenders, workload.is_hot, length).await
}

pub(crate) async fn measure(length: Duration) -> Vec<String> {
    // On the disk that the build is on: a directory for temporary files may be in memory.
    let folder = tempfile::tempdir_in(".").unwrap();
    // All clients have one address here, and Consul limits the connections of an address.
    let settings = "limits { http_max_conns_per_client = 1000 }";
    let server = servers::Consul::start_with(&folder.path().canonicalize().unwrap(), settings);
    let server = server.unwrap_or_else(|absent| panic!("{absent}"));
    let (url, api) = (format!("consul://{}", server.address), format!("http://{}/v1", server.address));
    let names = ["palisade", "palisade, one client with all tasks", "Consul's documented recipe"];
    let mut missed = Vec::new();
    for workload in &WORKLOADS {
        let mut rounds = Vec::new();
        for _ in 0..=ROUNDS {
            rounds.push(vec![
                ours(&url, workload.clients, workload.is_hot, length).await,
                ours_in_one(&url, workload.clients, workload.is_hot, length).await,
                recipe(&api, workload, length).await,
            ]);
        }
        missed.extend(show("Consul", workload, &names, &rounds[1..], &[None, None, Some(1.0)]));
    }
    missed
}
