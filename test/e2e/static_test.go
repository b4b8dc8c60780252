// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// TestStaticPools covers NodePools with a fixed number of Nodes.
func TestStaticPools(t *testing.T) {
	t.Parallel()
	needs(t, simulator("it knows the names and the capacity of the hosts"))
	e := newEnv(t, setup{hosts: 2, featureGates: "StaticCapacity=true,TerminateFirstDrift=true"})
	runShared(t, map[string]func(*testing.T){"machine": e.machine, "insufficient_capacity": e.insufficientCapacity})
}

// newStaticNodePool creates a NodePool with a fixed number of Nodes of one instance type.
func (e *env) newStaticNodePool(t *testing.T, name, instanceType string, replicas int64, changes ...func(*harness.Kit)) *nodePool {
	t.Helper()
	return e.newNodePool(t, name, func(kit *harness.Kit) {
		kit.Pool.Spec.Replicas = &replicas
		kit.Pool.Spec.Limits = nil // static NodePools are limited by their replicas
		kit.Pool.Spec.Template.Spec.Requirements = append(kit.Pool.Spec.Template.Spec.Requirements, karpv1.NodeSelectorRequirementWithMinValues{
			Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpIn, Values: []string{instanceType},
		})
		for _, change := range changes {
			change(kit)
		}
	})
}

func (p *nodePool) setReplicas(t *testing.T, n int) {
	t.Helper()
	p.patch(t, p.kit.Pool, fmt.Sprintf(`{"spec":{"replicas":%d}}`, n))
}

// machine replaces the Node of a NodePool with a machine, which keeps its name, address, host and data disk.
func (e *env) machine(t *testing.T) {
	g := NewWithT(t)
	p := e.newStaticNodePool(t, "db", "c1.1VCPU-2GB", 1, func(kit *harness.Kit) {
		kit.Pool.Spec.Limits = karpv1.Limits{"nodes": resource.MustParse("1")}
		spec := &kit.Class.Spec
		spec.Network = &v1alpha1.Network{Interfaces: []v1alpha1.VMInterface{{
			Name: "net0", Address4: &v1alpha1.AddressSource{CIDR: "172.16.0.0/12", Gateway: "172.16.255.254"},
		}}}
		spec.Disks = []v1alpha1.Disk{{Name: "data", Size: "5Gi", Storage: "local-lvm", Retain: true}}
		spec.Machines = []v1alpha1.Machine{{Name: "db-1", Zone: "pve2", Addresses: []v1alpha1.MachineAddresses{{Interface: "net0", Address4: "172.16.0.11"}}}}
	})
	identify := func(claim *karpv1.NodeClaim) (mac string, data proxmox.Drive) {
		vm, node := e.vmOf(g, claim), e.node(g, claim)
		g.Expect([]string{vm.Name, node.Name, vm.Host, node.Status.Addresses[0].Address}).To(Equal([]string{"db-1", "db-1", "pve2", "172.16.0.11"}))
		return proxmox.ParseNIC("net0", fmt.Sprint(vm.Config["net0"])).MAC, proxmox.ParseDrive("scsi1", fmt.Sprint(vm.Config["scsi1"]))
	}
	first := p.waitForClaim(t, "is settled", e.settled)
	mac, data := identify(first)
	g.Expect(data.SizeBytes).To(BeEquivalentTo(5 << 30))

	// The disk grows with the replacement.
	must(t, e.kube.Get(e.ctx, client.ObjectKeyFromObject(p.kit.Class), p.kit.Class))
	p.kit.Class.Spec.Disks[0].Size = "6Gi"
	must(t, e.kube.Update(e.ctx, p.kit.Class))
	second := p.waitForClaim(t, "replaces the first", func(claim *karpv1.NodeClaim) error {
		if claim.UID == first.UID {
			return fmt.Errorf("claim %s is not replaced", claim.Name)
		}
		return e.settled(claim)
	})
	sameMAC, grown := identify(second)
	g.Expect(sameMAC).To(Equal(mac))
	g.Expect(grown.VolumeID).To(Equal(data.VolumeID))
	g.Expect(grown.SizeBytes).To(BeEquivalentTo(6 << 30))
}

// insufficientCapacity requests six large VMs where each of the two hosts has capacity for one. Core recreates a claim that
// fails immediately, without backoff, so the others have to wait.
func (e *env) insufficientCapacity(t *testing.T) {
	g := NewWithT(t)
	const replicas, fitting = 6, 2
	p := e.newStaticNodePool(t, "toomany", "c1.8VCPU-16GB", replicas)
	known := map[types.UID]bool{}
	waiting := func(g Gomega) (names []string) {
		claims := p.claims(g)
		for i := range claims {
			known[claims[i].UID] = true
			if e.settled(&claims[i]) != nil {
				names = append(names, claims[i].Name)
			}
		}
		g.Expect(claims).To(HaveLen(replicas))
		return names
	}
	e.eventually(t, "Nodes on both hosts", func(g Gomega) { g.Expect(waiting(g)).To(HaveLen(replicas - fitting)) })
	for _, name := range waiting(g) {
		e.waitForEvent(t, name, "WaitingForCapacity")
	}
	for range 20 { // a loop would create dozens
		time.Sleep(2 * pollInterval)
		waiting(g)
	}
	g.Expect(len(known)).To(BeNumerically("<=", 2*replicas), "claims were created")
	g.Expect(p.vms(g)).To(HaveLen(fitting))

	// These pods run on the Nodes, so scaling down removes the other claims.
	p.deployPods(t, fitting)
	p.waitForPods(t, fitting)
	p.setReplicas(t, fitting)
	p.waitForNodes(t, fitting)
	p.waitForPods(t, fitting)
}
