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

// TestBadCloudConfig: a bad file ends the controller with one line that names
// the file, the field and the remedy.
func TestBadCloudConfig(t *testing.T) {
	t.Parallel()
	_, binary := binaries(t)
	for name, c := range map[string]struct {
		content string // none: the file is missing
		says    []string
	}{
		"missing":          {"", []string{"does not exist", "--cloud-config"}},
		"malformed":        {"clusters: [", []string{"bad YAML", "line 1"}},
		"empty":            {"# nothing", []string{"clusters"}},
		"unknown field":    {"clusters:" + strings.Replace(goodCluster, "url:", "uri:", 1), []string{"line 3", "clusters[0].uri", "unknown field", "url"}},
		"duplicate region": {"clusters:" + goodCluster + goodCluster, []string{"clusters[1].region", `"home"`, "a region names one cluster"}},
		"plain HTTP":       {"clusters:" + strings.Replace(goodCluster, "https:", "http:", 1), []string{"clusters[0].url", "want https://host:8006"}},
		"no URL":           {"clusters:" + strings.Replace(goodCluster, "https://127.0.0.1:8006", "pve1", 1), []string{"clusters[0].url", `"pve1"`, "want https://host:8006"}},
		"half a token":     {"clusters:" + strings.Replace(goodCluster, "kubernetes@pve!karpenter", "karpenter", 1), []string{"clusters[0].token_id", "user@realm!name"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			controller, err := harness.NewController(harness.ControllerOptions{Binary: binary, Dir: t.TempDir()})
			must(t, err)
			must(t, os.Remove(controller.CloudConfig()))
			if c.content != "" {
				must(t, os.WriteFile(controller.CloudConfig(), []byte(c.content), 0o600))
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience())
			defer cancel()
			output, exit, err := controller.Run(ctx)
			must(t, err)
			if exit == 0 {
				t.Error("the controller ended with exit status 0")
			}
			if lines := strings.Split(strings.TrimSpace(output), "\n"); len(lines) != 1 || !strings.HasPrefix(lines[0], "error: ") {
				t.Errorf("the controller wrote %d lines, want one that begins with \"error: \":\n%s", len(lines), output)
			}
			for _, want := range append(c.says, controller.CloudConfig()) {
				if !strings.Contains(output, want) {
					t.Errorf("the message lacks %q:\n%s", want, output)
				}
			}
			if strings.Contains(output, "11111111-2222") {
				t.Errorf("the message has the secret in it:\n%s", output)
			}
		})
	}
}

// TestUnusableClusters: a Cluster that cannot be used is told, waited for and
// used when it can be; the controller goes on all the time.
func TestUnusableClusters(t *testing.T) {
	t.Parallel()
	needs(t, simulator("it closes the door before Proxmox"))
	w := newWorld(t, setup{idle: true, hosts: 1})
	good := w.proxmox.Cluster(simulated)
	front, later := newDoor(t, w.proxmox), newDoor(t, w.proxmox)
	later.open()
	elsewhere := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(elsewhere.Close)

	regions := map[string]unusable{
		"down":    {front.leadsTo(good), []string{"refused", "check that the host is up"}},
		"token":   {with(good, func(c *harness.Cluster) { c.TokenSecret = "99999999-2222-3333-4444-555555555555" }), []string{"token_id", "token_secret"}},
		"trust":   {with(good, func(c *harness.Cluster) { c.CA = newAuthority(t).ca }), []string{"not trusted", "ca_file", "fingerprint"}},
		"address": {harness.Cluster{URLs: []string{elsewhere.URL}, CA: certificateOf(elsewhere), TokenID: good.TokenID, TokenSecret: good.TokenSecret}, []string{"check url", "https://host:8006"}},
	}
	clusters := []harness.Cluster{with(later.leadsTo(good), func(c *harness.Cluster) { c.Region = "later" })}
	for name, r := range regions {
		clusters = append(clusters, with(r.cluster, func(c *harness.Cluster) { c.Region = name }))
	}
	must(t, w.controller.Configure(clusters...))
	for _, cluster := range clusters {
		w.newPool(t, cluster.Region, func(kit *harness.Kit) { kit.Class.Spec.Region = cluster.Region })
	}
	must(t, w.controller.Start(t.Context()))
	pid := w.controller.PID()

	for name, r := range regions {
		t.Run(name, func(t *testing.T) { w.isTold(t, name, r.says) })
	}
	t.Run("down at the start recovers", func(t *testing.T) {
		front.open()
		w.reachable(t, "down", true)
	})
	t.Run("down later is told and recovers", func(t *testing.T) {
		w.reachable(t, "later", true)
		later.close()
		w.reachable(t, "later", false)
		w.clusterEvent(t, "later", "True -> False")
		w.pollsFail(t, "later")
		later.open()
		w.reachable(t, "later", true)
	})
	if !w.controller.Running() || w.controller.PID() != pid {
		t.Error("the controller did not survive")
	}
}

// unusable is a bad entry of the cloud config and what must be said about it.
type unusable struct {
	cluster harness.Cluster
	says    []string
}

func with(c harness.Cluster, change func(*harness.Cluster)) harness.Cluster {
	change(&c)
	return c
}

func certificateOf(server *httptest.Server) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
}

// isTold: in the log in one line, on the NodeClass, as an event, in a metric.
func (w *world) isTold(t *testing.T, region string, says []string) {
	t.Helper()
	message := w.reachable(t, region, false)
	w.clusterEvent(t, region, "-> False")
	w.pollsFail(t, region)
	lines := w.startupErrors(t, region)
	if len(lines) != 1 {
		t.Fatalf("the log has %d lines about region %s, want one: %q", len(lines), region, lines)
	}
	for where, text := range map[string]string{"log": lines[0], "condition": message} {
		for _, want := range says {
			if !strings.Contains(text, want) {
				t.Errorf("the %s lacks %q: %s", where, want, text)
			}
		}
	}
	if !strings.Contains(lines[0], filepath.Base(w.controller.CloudConfig())) {
		t.Errorf("the log does not name the file: %s", lines[0])
	}
}

// startupErrors are the errors that the log has about a region, without those of
// later rounds.
func (w *world) startupErrors(t *testing.T, region string) []string {
	t.Helper()
	content, err := os.ReadFile(w.controller.Log())
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

// reachable waits for the condition of the region's NodeClass and gives its
// message.
func (w *world) reachable(t *testing.T, region string, want bool) string {
	t.Helper()
	message := ""
	w.eventually(t, fmt.Sprintf("nodeclass %s to have ClustersReachable=%t", region, want), func(ctx context.Context) error {
		class := &v1alpha1.ProxmoxNodeClass{}
		if err := w.kube.Get(ctx, client.ObjectKey{Name: region}, class); err != nil {
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

func (w *world) clusterEvent(t *testing.T, class, transition string) {
	t.Helper()
	w.eventually(t, "an event about "+class, func(ctx context.Context) error {
		events := &corev1.EventList{}
		if err := w.kube.List(ctx, events); err != nil {
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

func (w *world) pollsFail(t *testing.T, region string) {
	t.Helper()
	w.within(t, 30*time.Second, "failed polls to be counted", func(ctx context.Context) error {
		n, err := w.controller.Metric(ctx, "karpenter_proxmox_inventory_poll_errors_total", map[string]string{"region": region})
		if err == nil && n == 0 {
			err = errors.New("the counter is 0")
		}
		return err
	})
}
