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
	"time"
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
	ports, err := freePorts(1)
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

// Sample is a series of the result of a query, with its value.
type Sample struct {
	Labels map[string]string
	Value  string
}

// Query returns the result of an instant query. It fails if the query is invalid.
func (p *Prometheus) Query(ctx context.Context, query string) ([]Sample, error) {
	var result struct {
		Data struct {
			Result []struct {
				Metric map[string]string
				Value  [2]any
			}
		}
	}
	if err := p.get(ctx, "/api/v1/query?query="+url.QueryEscape(query), &result); err != nil {
		return nil, err
	}
	samples := make([]Sample, 0, len(result.Data.Result))
	for _, series := range result.Data.Result {
		samples = append(samples, Sample{Labels: series.Metric, Value: fmt.Sprint(series.Value[1])})
	}
	return samples, nil
}

// Rule is the state of an alert.
type Rule struct {
	Name      string
	Health    string
	LastError string
	// State is inactive, pending or firing.
	State          string
	LastEvaluation time.Time
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
		return fmt.Errorf("reading the answer of Prometheus: %w", err)
	}
	return nil
}
