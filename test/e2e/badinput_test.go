// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

const goodCluster = `
  - region: home
    url: https://127.0.0.1:8006
    token_id: kubernetes@pve!karpenter
    token_secret: 11111111-2222-3333-4444-555555555555
`

// TestBadCloudConfig checks that an invalid file ends the controller with one line that names
// the file, the field and the fix.
func TestBadCloudConfig(t *testing.T) {
	t.Parallel()
	_, binary := binaries(t)
	for name, c := range map[string]struct {
		content string // empty: the file is missing
		want    []string
	}{
		"missing":          {"", []string{"does not exist", "--cloud-config"}},
		"malformed":        {"clusters: [", []string{"bad YAML", "line 1"}},
		"empty":            {"# nothing", []string{"clusters"}},
		"unknown_field":    {"clusters:" + strings.Replace(goodCluster, "url:", "uri:", 1), []string{"line 3", "clusters[0].uri", "unknown field", "url"}},
		"duplicate_region": {"clusters:" + goodCluster + goodCluster, []string{"clusters[1].region", `"home"`, "a region is one cluster"}},
		"plain_HTTP":       {"clusters:" + strings.Replace(goodCluster, "https:", "http:", 1), []string{"clusters[0].url", "want https://host:8006"}},
		"no_URL":           {"clusters:" + strings.Replace(goodCluster, "https://127.0.0.1:8006", "pve1", 1), []string{"clusters[0].url", `"pve1"`, "want https://host:8006"}},
		"invalid_token_ID": {"clusters:" + strings.Replace(goodCluster, "kubernetes@pve!karpenter", "karpenter", 1), []string{"clusters[0].token_id", "user@realm!name"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			controller, err := harness.NewController(harness.ControllerOptions{Binary: binary, Dir: t.TempDir()})
			must(t, err)
			must(t, os.Remove(controller.CloudConfig()))
			if c.content != "" {
				must(t, os.WriteFile(controller.CloudConfig(), []byte(c.content), 0o600))
			}
			ctx, cancel := context.WithTimeout(t.Context(), timeout())
			defer cancel()
			output, exit, err := controller.Run(ctx)
			must(t, err)
			if exit == 0 {
				t.Error("the controller exited with status 0")
			}
			if lines := strings.Split(strings.TrimSpace(output), "\n"); len(lines) != 1 || !strings.HasPrefix(lines[0], "error: ") {
				t.Errorf("the controller wrote %d lines, want one that starts with \"error: \":\n%s", len(lines), output)
			}
			for _, want := range append(c.want, controller.CloudConfig()) {
				if !strings.Contains(output, want) {
					t.Errorf("the message does not contain %q:\n%s", want, output)
				}
			}
			if strings.Contains(output, "11111111-2222") {
				t.Errorf("the message contains the secret:\n%s", output)
			}
		})
	}
}

// TestUnusableClusters checks that the controller reports unusable Proxmox clusters, keeps
// running and uses them when they become usable.
func TestUnusableClusters(t *testing.T) {
	t.Parallel()
	needs(t, simulator("it simulates outages"))
	e := newEnv(t, setup{idle: true, hosts: 1})
	good := e.proxmox.Cluster(simulated)
	front, later := newEndpoint(t, e.proxmox), newEndpoint(t, e.proxmox)
	later.start()
	elsewhere := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(elsewhere.Close)

	regions := map[string]unusable{
		"down":    {front.configure(good), []string{"refused", "check that the host is up"}},
		"token":   {modified(good, func(c *harness.Cluster) { c.TokenSecret = "99999999-2222-3333-4444-555555555555" }), []string{"token_id", "token_secret"}},
		"trust":   {modified(good, func(c *harness.Cluster) { c.CA = newAuthority(t).ca }), []string{"not trusted", "ca_file", "fingerprint"}},
		"address": {harness.Cluster{URLs: []string{elsewhere.URL}, CA: certificateOf(elsewhere), TokenID: good.TokenID, TokenSecret: good.TokenSecret}, []string{"check url", "https://host:8006"}},
	}
	clusters := []harness.Cluster{modified(later.configure(good), func(c *harness.Cluster) { c.Region = "later" })}
	for name, r := range regions {
		clusters = append(clusters, modified(r.cluster, func(c *harness.Cluster) { c.Region = name }))
	}
	must(t, e.controller.Configure(clusters...))
	for _, cluster := range clusters {
		e.newNodePool(t, cluster.Region, func(kit *harness.Kit) { kit.Class.Spec.Region = cluster.Region })
	}
	must(t, e.controller.Start(t.Context()))
	pid := e.controller.PID()

	for name, r := range regions {
		t.Run(name, func(t *testing.T) { e.expectReported(t, name, r.want) })
	}
	t.Run("recovers_if_down_at_start", func(t *testing.T) {
		front.start()
		e.waitForReachable(t, "down", true)
	})
	t.Run("recovers_if_down_later", func(t *testing.T) {
		e.waitForReachable(t, "later", true)
		later.stop()
		e.waitForReachable(t, "later", false)
		e.waitForClusterEvent(t, "later", "True -> False")
		e.waitForFailedPolls(t, "later")
		later.start()
		e.waitForReachable(t, "later", true)
	})
	if !e.controller.Running() || e.controller.PID() != pid {
		t.Error("the controller was restarted")
	}
}

// unusable is an invalid entry of the cloud config and what the controller must report.
type unusable struct {
	cluster harness.Cluster
	want    []string
}

func modified(c harness.Cluster, change func(*harness.Cluster)) harness.Cluster {
	change(&c)
	return c
}

func certificateOf(server *httptest.Server) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
}

// expectReported checks that an unusable region is reported in one line of the log, on the
// NodeClass, in an event and in a metric.
func (e *env) expectReported(t *testing.T, region string, want []string) {
	t.Helper()
	message := e.waitForReachable(t, region, false)
	e.waitForClusterEvent(t, region, "-> False")
	e.waitForFailedPolls(t, region)
	lines := e.startupErrors(t, region)
	if len(lines) != 1 {
		t.Fatalf("the log has %d lines about region %s, want 1: %q", len(lines), region, lines)
	}
	for where, text := range map[string]string{"log": lines[0], "condition": message} {
		for _, part := range want {
			if !strings.Contains(text, part) {
				t.Errorf("the %s does not contain %q: %s", where, part, text)
			}
		}
	}
	if !strings.Contains(lines[0], filepath.Base(e.controller.CloudConfig())) {
		t.Errorf("the log does not name the file: %s", lines[0])
	}
}

// startupErrors returns the log's errors about a region, except those of later polls.
func (e *env) startupErrors(t *testing.T, region string) []string {
	t.Helper()
	content, err := os.ReadFile(e.controller.Log())
	must(t, err)
	var out []string
	for line := range strings.Lines(string(content)) {
		var entry struct{ Level, Region, Error, Message string }
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Region == region && entry.Level == "ERROR" &&
			strings.HasPrefix(entry.Message, "connecting to the Proxmox cluster failed") {
			out = append(out, line)
		}
	}
	return out
}

// waitForReachable waits for the condition of the region's NodeClass and returns its message.
func (e *env) waitForReachable(t *testing.T, region string, want bool) string {
	t.Helper()
	message := ""
	e.eventually(t, fmt.Sprintf("nodeclass %s to have ClustersReachable=%t", region, want), func(ctx context.Context) error {
		class := &v1alpha1.ProxmoxNodeClass{}
		if err := e.kube.Get(ctx, client.ObjectKey{Name: region}, class); err != nil {
			return err
		}
		c := class.StatusConditions().Get(v1alpha1.ConditionClustersReachable)
		message = c.Message
		if c.IsTrue() != want || c.IsUnknown() {
			return fmt.Errorf("it is %s: %s", c.Status, c.Message)
		}
		return nil
	})
	return message
}

func (e *env) waitForClusterEvent(t *testing.T, class, transition string) {
	t.Helper()
	e.eventually(t, "an event about "+class, func(ctx context.Context) error {
		events := &corev1.EventList{}
		if err := e.kube.List(ctx, events); err != nil {
			return err
		}
		if !slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return e.InvolvedObject.Name == class && e.Reason == v1alpha1.ConditionClustersReachable && strings.Contains(e.Message, transition)
		}) {
			return errors.New("there is none")
		}
		return nil
	})
}

func (e *env) waitForFailedPolls(t *testing.T, region string) {
	t.Helper()
	e.within(t, 30*time.Second, "failed polls to be counted", func(ctx context.Context) error {
		n, err := e.controller.Metric(ctx, "karpenter_proxmox_inventory_poll_errors_total", map[string]string{"region": region})
		if err == nil && n == 0 {
			err = errors.New("the counter is 0")
		}
		return err
	})
}
