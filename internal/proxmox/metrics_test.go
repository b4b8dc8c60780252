// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

func TestMetricsOfRequests(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	registry := prometheus.NewPedanticRegistry()
	host := newFakeHost(t, func(r request) reply {
		if r.method == "GET" {
			return failed(500, "Configuration file 'nodes/pve1/qemu-server/201.conf' does not exist")
		}
		return data(`"` + testUPID + `"`)
	})
	c := newClient(t, config(host), proxmox.Options{Registerer: registry})
	other := config(host)
	other.Region = "dc2"
	c2 := newClient(t, other, proxmox.Options{Registerer: registry})
	_, _ = c.VMConfig(testContext(t), "pve1", 200)
	_, _ = c.VMConfig(testContext(t), "pve2", 201)
	_, _ = c.UploadISO(testContext(t), "pve1", "local", "a.iso", []byte("iso"))
	_, _ = c2.DeleteVolume(testContext(t), "pve1", "local:iso/a.iso")
	host.server.Close()
	_, _ = c2.StartVM(testContext(t), "pve1", 200)

	g.Expect(testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP karpenter_proxmox_api_requests_total Requests to the Proxmox VE API by endpoint, method and status code; code "none" means no response.
# TYPE karpenter_proxmox_api_requests_total counter
karpenter_proxmox_api_requests_total{code="500",endpoint="/nodes/:node/qemu/:vmid/config",method="GET",region="dc1"} 2
karpenter_proxmox_api_requests_total{code="200",endpoint="/nodes/:node/storage/:storage/upload",method="POST",region="dc1"} 1
karpenter_proxmox_api_requests_total{code="200",endpoint="/nodes/:node/storage/:storage/content/:volume",method="DELETE",region="dc2"} 1
karpenter_proxmox_api_requests_total{code="none",endpoint="/nodes/:node/qemu/:vmid/status/start",method="POST",region="dc2"} 1
`), "karpenter_proxmox_api_requests_total")).To(Succeed())
	g.Expect(testutil.GatherAndCount(registry, "karpenter_proxmox_api_request_duration_seconds")).To(Equal(4))
}

func TestMetricsOfLocksAndTasks(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	registry := prometheus.NewPedanticRegistry()
	host := newFakeHost(t, func(r request) reply {
		if r.method == "GET" {
			return data(`{"status":"stopped","exitstatus":"OK","type":"qmstart","upid":"` + testUPID + `"}`)
		}
		return failed(500, "can't lock file '/var/lock/qemu-server/lock-200.conf' - got timeout")
	})
	c := newClient(t, config(host), proxmox.Options{Registerer: registry})
	_, err := c.StartVM(testContext(t), "pve1", 200)
	g.Expect(err).To(MatchError(proxmox.ErrLocked))
	_, err = proxmox.WaitTask(testContext(t), c, testUPID, proxmox.WaitOptions{})
	g.Expect(err).NotTo(HaveOccurred())

	g.Expect(testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP karpenter_proxmox_api_locked_total Requests that Proxmox refused because of a lock or for want of a worker. They are tried again.
# TYPE karpenter_proxmox_api_locked_total counter
karpenter_proxmox_api_locked_total{endpoint="/nodes/:node/qemu/:vmid/status/start",region="dc1"} 1
`), "karpenter_proxmox_api_locked_total")).To(Succeed())
	g.Expect(testutil.GatherAndCount(registry, "karpenter_proxmox_task_duration_seconds")).To(Equal(1))
}
