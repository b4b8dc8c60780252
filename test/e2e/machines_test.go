// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// TestMachines replaces the Nodes of a static NodePool with machines. Each keeps its name,
// address, host and data disk.
func TestMachines(t *testing.T) {
	t.Parallel()
	needs(t, simulator("it has two hosts of known names"))
	for _, version := range []string{"8.4", "9.2"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			newEnv(t, setup{hosts: 2, version: version, featureGates: "StaticCapacity=true,TerminateFirstDrift=true"}).checkMachines(t)
		})
	}
}

// identity is what a machine keeps.
type identity struct {
	name, address, host, mac, volume string
}

func (e *env) checkMachines(t *testing.T) {
	before, err := e.holdings(t.Context())
	must(t, err)
	const replicas = 2
	p := e.newNodePool(t, "db", func(kit *harness.Kit) {
		kit.Pool.Spec.Replicas = new(int64(replicas))
		kit.Pool.Spec.Limits = karpv1.Limits{"nodes": *resource.NewQuantity(replicas, resource.DecimalSI)}
		kit.Pool.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "1"}}
		kit.Pool.Spec.Template.Spec.Requirements = append(kit.Pool.Spec.Template.Spec.Requirements, karpv1.NodeSelectorRequirementWithMinValues{
			Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpIn, Values: []string{"c1.1VCPU-2GB"},
		})
		spec := &kit.Class.Spec
		spec.Network = &v1alpha1.Network{Interfaces: []v1alpha1.VMInterface{{Name: "net0", Address4: &pool4}}}
		spec.Disks = []v1alpha1.Disk{{Name: "data", Size: "5Gi", Storage: "local-lvm", Retain: true}}
		for n := range replicas {
			spec.Machines = append(spec.Machines, v1alpha1.Machine{
				Name: fmt.Sprintf("db-%d", n+1), Zone: fmt.Sprintf("pve%d", n+1),
				Addresses: []v1alpha1.MachineAddresses{{Interface: "net0", Address4: fmt.Sprintf("172.16.0.%d", n+11)}},
			})
		}
	})
	claims := p.waitForNodes(t, replicas)
	first := p.identities(t, claims)
	for n := range replicas {
		want := identity{name: fmt.Sprintf("db-%d", n+1), host: fmt.Sprintf("pve%d", n+1), address: fmt.Sprintf("172.16.0.%d", n+11)}
		if got := first[want.name]; got.host != want.host || got.address != want.address || got.volume == "" {
			t.Errorf("node %s is %+v, want host %s and address %s with a retained disk", want.name, got, want.host, want.address)
		}
	}

	// The disk grows with the replacement.
	patch := []byte(`[{"op":"replace","path":"/spec/disks/0/size","value":"6Gi"}]`)
	must(t, p.kube.Patch(t.Context(), &v1alpha1.ProxmoxNodeClass{ObjectMeta: p.kit.Class.ObjectMeta}, client.RawPatch(types.JSONPatchType, patch)))
	old := map[types.UID]bool{}
	for _, claim := range claims {
		old[claim.UID] = true
	}
	var replaced []karpv1.NodeClaim
	p.eventually(t, "the nodes to be replaced", func(ctx context.Context) (err error) {
		if replaced, err = p.claims(ctx); err != nil || len(replaced) != replicas {
			return fmt.Errorf("there are %d claims (%w)", len(replaced), err)
		}
		for i := range replaced {
			if old[replaced[i].UID] {
				err = errors.Join(err, fmt.Errorf("claim %s is not replaced", replaced[i].Name))
			}
			err = errors.Join(err, settled(&replaced[i]))
		}
		return err
	})
	if after := p.identities(t, replaced); !maps.Equal(first, after) {
		t.Errorf("the nodes are %+v, want %+v as before", after, first)
	}
	for _, claim := range replaced {
		if size := dataDisk(vmOf(t, p, &claim)).SizeBytes; size != 6<<30 {
			t.Errorf("the disk of claim %s has %d bytes, want 6 GiB", claim.Name, size)
		}
	}

	p.setReplicas(t, 0)
	p.waitForNodes(t, 0)
	p.waitUntilGone(t)
	e.deleteRetainedDisks(t, first)
	if !t.Failed() {
		e.expectUnchanged(t, before)
	}
}

// identities returns what the machines of claims have, by the name of their Nodes.
func (p *nodePool) identities(t *testing.T, claims []karpv1.NodeClaim) map[string]identity {
	t.Helper()
	out := map[string]identity{}
	for i := range claims {
		node := &corev1.Node{}
		must(t, p.kube.Get(t.Context(), client.ObjectKey{Name: claims[i].Status.NodeName}, node))
		vm := vmOf(t, p, &claims[i])
		if vm.Name != node.Name {
			t.Errorf("VM %d is named %s, want the name of node %s", vm.VMID, vm.Name, node.Name)
		}
		out[node.Name] = identity{
			name: node.Name, host: vm.Host, address: node.Status.Addresses[0].Address, volume: dataDisk(vm).VolumeID,
			mac: proxmox.ParseNIC("net0", fmt.Sprint(vm.Config["net0"])).MAC,
		}
	}
	return out
}

// dataDisk returns the retained disk of a VM.
func dataDisk(vm harness.Guest) proxmox.Drive {
	return proxmox.ParseDrive("scsi1", fmt.Sprint(vm.Config["scsi1"]))
}

// deleteRetainedDisks does what an administrator does with disks that nobody needs.
func (e *env) deleteRetainedDisks(t *testing.T, machines map[string]identity) {
	t.Helper()
	volumes, err := e.api.Volumes(t.Context())
	must(t, err)
	left := 0
	for _, volume := range volumes {
		if strings.Contains(volume.ID, fmt.Sprintf("vm-%d-", proxmox.RetainedVMID)) {
			left++
		}
	}
	if left != len(machines) {
		t.Errorf("%d retained disks are left, want %d", left, len(machines))
	}
	for _, m := range machines {
		must(t, e.api.Run(t.Context(), http.MethodDelete, fmt.Sprintf("/nodes/%s/storage/local-lvm/content/%s", m.host, m.volume), nil))
	}
}
