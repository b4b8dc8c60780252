// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Prometheus is a Prometheus server that scrapes the controller.
type Prometheus struct {
	url     string
	process *process
}

// PrometheusOptions configure a Prometheus.
type PrometheusOptions struct {
	Binary string
	Dir    string
	// Target is the URL of the metrics server to scrape, every second.
	Target string
	// Rules are the alerts.
	Rules string
}

// StartPrometheus starts a Prometheus and waits until it is ready.
func StartPrometheus(ctx context.Context, o PrometheusOptions) (*Prometheus, error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("creating the directory of Prometheus: %w", err)
	}
	ports, err := FreePorts(1)
	if err != nil {
		return nil, err
	}
	address, config := fmt.Sprintf("127.0.0.1:%d", ports[0]), filepath.Join(o.Dir, "prometheus.yaml")
	content := fmt.Sprintf(`global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%q]
scrape_configs:
  - job_name: karpenter
    static_configs: [{targets: [%q]}]
`, o.Rules, strings.TrimPrefix(o.Target, "http://"))
	if err := os.WriteFile(config, []byte(content), 0o600); err != nil {
		return nil, fmt.Errorf("writing the configuration of Prometheus: %w", err)
	}
	cmd := exec.Command(o.Binary, "--config.file", config, "--storage.tsdb.path", filepath.Join(o.Dir, "data"), "--web.listen-address", address)
	p := &Prometheus{url: "http://" + address}
	if p.process, err = startProcess("prometheus", filepath.Join(o.Dir, "prometheus.log"), cmd); err != nil {
		return nil, err
	}
	if err := until(ctx, controllerStartTimeout, p.process, func(ctx context.Context) error {
		_, err := fetch(ctx, p.url+"/-/ready")
		return err
	}); err != nil {
		p.Stop()
		return nil, err
	}
	return p, nil
}

// Stop ends the Prometheus.
func (p *Prometheus) Stop() { p.process.stop(stopGracePeriod) }

// Query returns the number of series of an instant query. It fails if the query is invalid.
func (p *Prometheus) Query(ctx context.Context, query string) (series int, err error) {
	var result struct{ Data struct{ Result []any } }
	err = p.get(ctx, "/api/v1/query?query="+url.QueryEscape(query), &result)
	return len(result.Data.Result), err
}

// Rule is the state of an alert.
type Rule struct {
	Name      string
	Health    string
	LastError string
	// State is inactive, pending or firing.
	State string
}

// Rules returns all alerts.
func (p *Prometheus) Rules(ctx context.Context) ([]Rule, error) {
	var result struct {
		Data struct{ Groups []struct{ Rules []Rule } }
	}
	if err := p.get(ctx, "/api/v1/rules", &result); err != nil {
		return nil, err
	}
	var rules []Rule
	for _, group := range result.Data.Groups {
		rules = append(rules, group.Rules...)
	}
	return rules, nil
}

func (p *Prometheus) get(ctx context.Context, path string, into any) error {
	content, err := fetch(ctx, p.url+path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(content, into); err != nil {
		return fmt.Errorf("reading the response of Prometheus: %w", err)
	}
	return nil
}
