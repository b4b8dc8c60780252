// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

func TestMetricsOfRequests(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		registry := prometheus.NewPedanticRegistry()
		host := newFakeHost(t, func(r request) reply {
			if r.method == "GET" {
				return failed(500, "can't lock file '/var/lock/qemu-server/lock-200.conf' - got timeout")
			}
			return works(r)
		})
		c := newClient(t, config(host), proxmox.Options{Registerer: registry})
		other := config(host)
		other.Region = "dc2"
		c2 := newClient(t, other, proxmox.Options{Registerer: registry})
		_, _ = c.VMConfig(t.Context(), "pve1", 200)
		_, _ = c.VMConfig(t.Context(), "pve2", 201)
		_, _ = c.UploadISO(t.Context(), "pve1", "local", "a.iso", []byte("iso"))
		_, _ = c2.DeleteVolume(t.Context(), "pve1", "local:iso/a.iso")
		host.server.Close()
		_, _ = c2.StartVM(t.Context(), "pve1", 200)

		g.Expect(countRequests(g, registry)).To(ConsistOf(
			"dc1 GET /nodes/:node/qemu/:vmid/config 500 2",
			"dc1 POST /nodes/:node/storage/:storage/upload 200 1",
			"dc2 DELETE /nodes/:node/storage/:storage/content/:volume 200 1",
			"dc2 POST /nodes/:node/qemu/:vmid/status/start none 1",
		))
		g.Expect(testutil.GatherAndCount(registry, "karpenter_proxmox_api_request_duration_seconds")).To(Equal(4))
	})
}

// An answer that the caller expects is not an error, whatever its status code.
func TestMetricsOfExpectedAnswers(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		const missing = "Configuration file 'nodes/pve1/qemu-server/200.conf' does not exist"
		answers := map[string]reply{
			"GET /nodes/pve1/qemu/200/config?current=1":                        failed(500, missing),
			"DELETE /nodes/pve1/qemu/200?destroy-unreferenced-disks=0&purge=1": failed(500, missing),
			"POST /nodes/pve1/qemu/200/status/start":                           failed(500, missing),
			// Without a privilege on a VMID, 403 may mean that it is free.
			"GET /nodes/pve1/qemu/201/config?current=1": failed(403, "Permission check failed (/vms/201, VM.Audit)"),
			"GET /nodes/pve1/qemu/202/config?current=1": failed(403, "Permission check failed (/vms/202, VM.Audit)"),
			"GET /cluster/nextid?vmid=201":              data(`"201"`),
			"GET /cluster/nextid?vmid=202":              {status: 400, reason: "Parameter verification failed.", body: `{"errors":{"vmid":"VM 202 already exists"}}`},
		}
		host := newFakeHost(t, func(r request) reply { return answers[r.method+" "+r.uri] })
		registry := prometheus.NewPedanticRegistry()
		c := newClient(t, config(host), proxmox.Options{Registerer: registry})
		for _, vmid := range []int{200, 201} {
			g.Expect(c.VMConfig(t.Context(), "pve1", vmid)).Error().To(MatchError(proxmox.ErrNotFound))
		}
		g.Expect(c.VMConfig(t.Context(), "pve1", 202)).Error().To(MatchError(ContainSubstring("VM.Audit is missing on /vms/202")))
		g.Expect(c.DestroyVM(t.Context(), "pve1", 200)).Error().To(MatchError(proxmox.ErrNotFound))
		g.Expect(c.StartVM(t.Context(), "pve1", 200)).Error().To(MatchError(proxmox.ErrNotFound))

		g.Expect(countRequests(g, registry)).To(ConsistOf(
			"dc1 GET /nodes/:node/qemu/:vmid/config not_found 2",
			"dc1 GET /nodes/:node/qemu/:vmid/config 403 1",
			"dc1 GET /cluster/nextid 200 1",
			"dc1 GET /cluster/nextid exists 1",
			"dc1 DELETE /nodes/:node/qemu/:vmid not_found 1",
			"dc1 POST /nodes/:node/qemu/:vmid/status/start 500 1",
		))
	})
}

// countRequests returns the number of requests by region, method, endpoint and code.
func countRequests(g Gomega, registry *prometheus.Registry) []string {
	return counters(g, registry, "karpenter_proxmox_api_requests_total")
}

// counters returns the values of a counter by its labels.
func counters(g Gomega, registry *prometheus.Registry, name string) []string {
	families, err := registry.Gather()
	g.Expect(err).NotTo(HaveOccurred())
	var found []string
	for _, family := range families {
		for _, series := range family.GetMetric() {
			labels := map[string]string{}
			for _, pair := range series.GetLabel() {
				labels[pair.GetName()] = pair.GetValue()
			}
			if family.GetName() == name {
				text := fmt.Sprint(labels["region"], " ", labels["method"], " ", labels["endpoint"], " ", labels["code"], " ", series.GetCounter().GetValue())
				found = append(found, strings.Join(strings.Fields(text), " "))
			}
		}
	}
	return found
}

func TestMetricsOfLocksAndTasks(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		registry := prometheus.NewPedanticRegistry()
		host := newFakeHost(t, func(r request) reply {
			if r.method == "GET" {
				return data(`{"status":"stopped","exitstatus":"OK","type":"qmstart","upid":"` + testUPID + `"}`)
			}
			return failed(500, "can't lock file '/var/lock/qemu-server/lock-200.conf' - got timeout")
		})
		c := newClient(t, config(host), proxmox.Options{Registerer: registry})
		g.Expect(c.StartVM(t.Context(), "pve1", 200)).Error().To(MatchError(proxmox.ErrLocked))
		g.Expect(proxmox.WaitTask(t.Context(), c, testUPID, proxmox.WaitOptions{})).Error().NotTo(HaveOccurred())

		g.Expect(counters(g, registry, "karpenter_proxmox_api_locked_total")).To(ConsistOf("dc1 /nodes/:node/qemu/:vmid/status/start 1"))
		g.Expect(testutil.GatherAndCount(registry, "karpenter_proxmox_task_duration_seconds")).To(Equal(1))
	})
}
