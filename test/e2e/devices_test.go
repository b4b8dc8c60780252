// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// TestDevices checks that each pod that requests a GPU gets a VM with its own GPU on the host
// that has them, and that a pod gets an event when all GPUs are in use.
func TestDevices(t *testing.T) {
	t.Parallel()
	needs(t, simulator("it has GPUs"))
	e := newEnv(t, setup{hosts: 2, gpus: 2, args: []string{"--pci-resources", harness.GPUMapping + "=" + harness.GPUResource}})
	p := e.newNodePool(t, "devices", nil)
	p.deploy(t, 3, func(d *appsv1.Deployment) {
		gpu := corev1.ResourceList{harness.GPUResource: resource.MustParse("1")}
		resources := &d.Spec.Template.Spec.Containers[0].Resources
		resources.Requests[harness.GPUResource], resources.Limits = gpu[harness.GPUResource], gpu
	})
	var waiting string
	p.eventually(t, "two of three pods to run", func(ctx context.Context) error {
		pods, err := harness.Pods(ctx, p.kube, p.name)
		ready := 0
		for i := range pods {
			if harness.PodReady(&pods[i]) {
				ready++
			} else {
				waiting = pods[i].Name
			}
		}
		if err != nil || ready != 2 || len(pods) != 3 {
			return fmt.Errorf("%d of %d pods run (%w)", ready, len(pods), err)
		}
		return nil
	})
	vms, err := p.vms(t.Context())
	must(t, err)
	for _, vm := range vms {
		if device, _ := vm.Config["hostpci0"].(string); !strings.Contains(device, "mapping="+harness.GPUMapping) || vm.Host != "pve1" {
			t.Errorf("VM %d on %s has device %q, want one of the mapping %s on pve1", vm.VMID, vm.Host, device, harness.GPUMapping)
		}
	}
	if len(vms) != 2 {
		t.Errorf("there are %d VMs for two GPUs", len(vms))
	}
	if message := p.waitForEvent(t, waiting, "NoHostFits"); !strings.Contains(message, "pve1") || !strings.Contains(message, "pve2") {
		t.Errorf("the event of the pod without a GPU is %q", message)
	}
	p.deleteAllClaims(t)
}

// TestIdleRequests checks that an idle controller sends few requests, regardless of the number
// of VMs.
func TestIdleRequests(t *testing.T) {
	t.Parallel()
	needs(t, simulator("it counts requests"))
	const budget, window, settling = 8, time.Minute, time.Minute
	e := newEnv(t, setup{hosts: 10, pollInterval: 10 * time.Second})
	p := e.newNodePool(t, "idle", neverConsolidate)
	p.deployPods(t, 3)
	p.waitForPods(t, 3)
	p.eventually(t, "all claims to be settled", func(ctx context.Context) error {
		claims, err := p.claims(ctx)
		for i := range claims {
			if err == nil {
				err = settled(&claims[i])
			}
		}
		return err
	})
	// Recent changes are read once more. After that, every minute has the same number of
	// requests.
	from := time.Now().Add(settling)
	p.within(t, settling+2*window+time.Minute, "the idle time to pass", func(context.Context) error {
		if left := time.Until(from.Add(2 * window)); left > 0 {
			return fmt.Errorf("%s remaining", left)
		}
		return nil
	})
	requests := e.proxmox.Requests()
	for n, first := range requests {
		var minute []string
		for _, request := range requests[n:] {
			if request.Time.Sub(first.Time) < window {
				minute = append(minute, request.Method+" "+request.Path)
			}
		}
		if first.Time.After(from) && len(minute) > budget {
			t.Fatalf("there were %d requests in the minute from %s, want at most %d: %s", len(minute), first.Time, budget, strings.Join(minute, ", "))
		}
	}
	p.deleteAllClaims(t)
}
