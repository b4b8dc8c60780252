// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
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
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// TestNodes contains tests that share an environment. Each has its own NodePool. Afterwards
// Proxmox must be as before.
func TestNodes(t *testing.T) {
	t.Parallel()
	e := newEnv(t, setup{})
	if e.proxmox != nil { // the tests do not write to a lab's hosts
		must(t, e.plane.PlaceSnippet(e.ctx, e.proxmox, e.plane.Server, e.region))
	}
	before := e.holdings(NewWithT(t))
	runShared(t, map[string]func(*testing.T){
		"scale_up_and_down":  e.scaleUpAndDown,
		"spread_over_hosts":  e.spreadOverHosts,
		"proxmox_cloud_init": e.proxmoxDrive,
	})
	if !t.Failed() {
		e.expectUnchanged(t, before)
	}
}

// scaleUpAndDown launches a Node for a pod. Consolidation deletes it when the pod is deleted.
func (e *env) scaleUpAndDown(t *testing.T) {
	needs(t, guestsThatJoin())
	g, taint := NewWithT(t), corev1.Taint{Key: "dedicated", Value: "blue", Effect: corev1.TaintEffectNoSchedule}
	p := e.newNodePool(t, "blue", func(kit *harness.Kit) {
		kit.Pool.Spec.Template.Labels = map[string]string{"team": "blue"}
		kit.Pool.Spec.Template.Spec.Taints = []corev1.Taint{taint}
	})
	claim, node := p.oneNode(t)
	vm := p.vmOf(g, claim)
	wantID := v1alpha1.ProviderID{Region: e.region, VMID: vm.VMID}.String()
	g.Expect([]string{node.Spec.ProviderID, claim.Status.ProviderID}).To(HaveEach(wantID))
	g.Expect(node.Status.NodeInfo.SystemUUID).To(BeEquivalentTo(claim.UID))
	for key, want := range map[string]string{
		"team": "blue", corev1.LabelTopologyZone: vm.Host, corev1.LabelTopologyRegion: e.region,
		karpv1.NodePoolLabelKey: p.name, corev1.LabelInstanceTypeStable: claim.Labels[corev1.LabelInstanceTypeStable],
		karpv1.CapacityTypeLabelKey: karpv1.CapacityTypeOnDemand,
	} {
		g.Expect(node.Labels).To(HaveKeyWithValue(key, want))
	}
	g.Expect(node.Spec.Taints).To(And(ContainElement(taint), Not(ContainElement(HaveField("Key", karpv1.UnregisteredTaintKey)))))
	if e.proxmox != nil {
		joined, problems, err := e.proxmox.BootRecorder.CheckJoins(e.ctx, e.kube, []string{node.Name})
		must(t, err)
		g.Expect(joined).To(Equal(1), "the node did not join with its own token: %v", problems)
	}
	p.eventually(t, "the boot drive to be deleted", func(g Gomega) {
		g.Expect(fmt.Sprint(p.vmOf(g, claim).Config)).NotTo(ContainSubstring(".iso"))
		p.expectNoBootData(g, *claim)
	})
	p.scale(t, 0)
	p.waitUntilGone(t, *claim)
}

// spreadOverHosts checks that pods that must be spread over zones get VMs on as many hosts.
func (e *env) spreadOverHosts(t *testing.T) {
	needs(t, guestsThatJoin(), hosts(2))
	all, err := e.api.Hosts(e.ctx)
	must(t, err)
	up := slices.Sorted(maps.Keys(all))
	if suite.lab != nil {
		up = suite.lab.Hosts
		needs(t, capacity(len(up)))
	}
	p := e.newNodePool(t, "spread", nil)
	p.deployPods(t, int32(len(up)), onePerHost)
	p.waitForPods(t, len(up))
	var used []string
	for _, vm := range p.vms(NewWithT(t)) {
		used = append(used, vm.Host)
	}
	NewWithT(t).Expect(used).To(ConsistOf(up))
	p.deleteClaims(t)
}

// proxmoxDrive checks boot data by Proxmox, as in the example. The VM is identified by its
// serial number.
func (e *env) proxmoxDrive(t *testing.T) {
	needs(t, simulator("it writes files on the hosts"))
	class, err := harness.ProxmoxCloudInitClass()
	must(t, err)
	p := e.newNodePool(t, "own-drive", func(kit *harness.Kit) { kit.Class.Spec.MetadataOptions = class.Spec.MetadataOptions })
	claim, node := p.oneNode(t)
	NewWithT(t).Expect(node.Spec.ProviderID).To(Equal(claim.Status.ProviderID))
	p.waitForNoTaints(t, claim)
	p.deleteClaims(t)
}

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
	p.patch(t, p.kit.Pool, fmt.Sprintf(`{"spec":{"replicas":%d}}`, fitting))
	p.waitForClaims(t, fitting, "are settled", p.settled)
	p.waitForPods(t, fitting)
}

// TestVMs contains tests for any Proxmox, whether its guests can join or not: VMs match their
// class, exist once and are deleted; other guests are not touched.
func TestVMs(t *testing.T) {
	t.Parallel()
	e := newEnv(t, setup{hosts: 2, version: "9.2", args: []string{"--orphan-grace-period", "5s"}})
	before := e.holdings(NewWithT(t))
	p := e.newNodePool(t, "any", nil)
	p.deployPods(t, 1)
	var claim *karpv1.NodeClaim
	t.Run("controller_killed_during_launch", func(t *testing.T) { claim = p.killedDuringLaunch(t) })
	t.Run("orphan", func(t *testing.T) { p.orphanDeleted(t, claim) })
	t.Run("VMID_reused", p.vmidReused)
	if !t.Failed() {
		e.expectUnchanged(t, before)
	}
}

// killedDuringLaunch kills the controller when the VM appears in Proxmox and lets another one
// complete the launch.
func (p *nodePool) killedDuringLaunch(t *testing.T) *karpv1.NodeClaim {
	g := NewWithT(t)
	was := p.killDuringLaunch(t)
	must(t, p.controller.Start(p.ctx))
	claim := p.waitForClaim(t, "is launched", p.launched)
	g.Expect(claim.UID).To(Equal(was.UID))
	vms := p.vms(g)
	g.Expect(vms).To(HaveLen(1))
	vm := vms[0]
	g.Expect(was.Status.ProviderID).To(Equal(v1alpha1.ProviderID{Region: p.region, VMID: vm.VMID}.String()))
	g.Expect(vm).To(And(HaveField("Status", "running"), HaveField("Name", claim.Name)))
	g.Expect(vm.Config).To(And(
		HaveKeyWithValue("smbios1", ContainSubstring(string(claim.UID))), HaveKeyWithValue("tags", ContainSubstring("karpenter")),
		HaveKeyWithValue("cores", BeEquivalentTo(claim.Status.Capacity.Cpu().Value()))))
	var disks []int64
	for _, key := range slices.Sorted(maps.Keys(vm.Config)) {
		if value := fmt.Sprint(vm.Config[key]); strings.Contains(value, "size=") && !strings.Contains(value, "media=cdrom") {
			disks = append(disks, proxmox.ParseDrive(key, value).SizeBytes)
		}
	}
	size, err := p.kit.Class.Spec.BootDevice.Size.Bytes()
	must(t, err)
	g.Expect(disks).To(HaveExactElements(BeNumerically(">=", size)))
	return claim
}

// killDuringLaunch kills the controller as soon as the NodePool has a VM, and returns its NodeClaim. It polls without delay
// because the steps of a launch are short.
func (p *nodePool) killDuringLaunch(t *testing.T) *karpv1.NodeClaim {
	t.Helper()
	if p.proxmox != nil {
		// On a busy machine, the launch must not be completed before the controller is killed.
		fault, err := p.proxmox.AddFault(pvesim.Fault{Task: "qmstart", Delay: pvesim.Duration(10 * time.Second * speed), Count: 1})
		must(t, err)
		defer p.proxmox.RemoveFault(fault)
	}
	NewWithT(t).Eventually(func(g Gomega) {
		claims := p.claims(g)
		g.Expect(claims).NotTo(BeEmpty())
		p.vmOf(g, &claims[0])
	}).WithTimeout(timeout()).WithPolling(time.Millisecond).Should(Succeed())
	p.controller.Kill()
	claim := p.waitForClaim(t, "has an intent", hasIntent)
	NewWithT(t).Expect(p.launched(claim)).NotTo(Succeed(), "the controller was killed too late")
	return claim
}

// orphanDeleted deletes a NodeClaim without its finalizer. Its VM must be deleted, and no other guest.
func (p *nodePool) orphanDeleted(t *testing.T, claim *karpv1.NodeClaim) {
	g := NewWithT(t)
	vm := p.vmOf(g, claim)
	office := p.createForeignGuest(t, vm.Host, 0, url.Values{"name": {"office"}})
	// A copy has the same notes and UUID as the original.
	copied := p.createForeignGuest(t, vm.Host, 0, url.Values{"name": {"copied"}, "description": {vm.Notes()}, "smbios1": {fmt.Sprint(vm.Config["smbios1"])}})

	p.scale(t, 0) // otherwise Karpenter creates another one
	orphaned := claim.DeepCopy()
	must(t, p.kube.Delete(p.ctx, claim))
	must(t, client.IgnoreNotFound(p.kube.Patch(p.ctx, orphaned, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))))
	p.eventually(t, "the orphan to be deleted", func(g Gomega) { g.Expect(vmids(p.guests(g))).NotTo(ContainElement(vm.VMID)) })
	from := p.rounds(g)
	p.eventually(t, "rounds of the garbage collector", func(g Gomega) { g.Expect(p.rounds(g) - from).To(BeNumerically(">", 3)) })
	for _, was := range []harness.Guest{office, copied} {
		g.Expect(p.guest(g, was.VMID)).To(Equal(was))
		must(t, p.api.Destroy(p.ctx, was))
	}
	p.waitUntilGone(t, *claim)
}

// rounds returns the number of the garbage collector's reconciles.
func (e *env) rounds(g Gomega) float64 {
	n, err := e.controller.Metric(e.ctx, "controller_runtime_reconcile_total", map[string]string{"controller": "nodeclaim.garbagecollection.proxmox"})
	g.Expect(err).NotTo(HaveOccurred())
	return n
}

// vmidReused deletes the VM while no controller runs and creates another guest with its VMID.
func (p *nodePool) vmidReused(t *testing.T) {
	g := NewWithT(t)
	must(t, harness.Scale(p.ctx, p.kube, p.name, 1))
	first := p.waitForClaim(t, "is launched", p.launched)
	vm := p.vmOf(g, first)
	p.controller.Stop()
	must(t, p.api.Destroy(p.ctx, vm))
	theirs := p.createForeignGuest(t, vm.Host, vm.VMID, url.Values{"name": {"foreign"}})
	must(t, p.controller.Start(p.ctx))
	p.waitForDeletion(t, first)
	p.waitForClaim(t, "replaces the first", p.launched)
	p.deleteClaims(t)
	g.Expect(p.guest(g, vm.VMID)).To(Equal(theirs))
	must(t, p.api.Destroy(p.ctx, theirs))
}

// createForeignGuest creates a guest that does not belong to the controller, without disk or
// network. With VMID 0 it uses the highest unused one, which the controller is unlikely to choose.
func (e *env) createForeignGuest(t *testing.T, host string, vmid int, config url.Values) harness.Guest {
	t.Helper()
	g := NewWithT(t)
	if vmid == 0 {
		vmid = 99999
		if suite.lab != nil {
			vmid = suite.lab.VMIDs.To
		}
		for used := vmids(e.guests(g)); slices.Contains(used, vmid); {
			vmid--
		}
	}
	config.Set("vmid", strconv.Itoa(vmid))
	config.Set("memory", "128")
	config.Set("description", config.Get("description")+"\n\n"+harness.TestNotes(e.cluster, vmid))
	if suite.lab != nil && suite.lab.ResourcePool != "" {
		config.Set("pool", suite.lab.ResourcePool) // otherwise the token has no permission
	}
	must(t, e.api.Run(e.ctx, http.MethodPost, "/nodes/"+host+"/qemu", config))
	return e.guest(g, vmid)
}

func vmids(vms []harness.Guest) (out []int) {
	for _, vm := range vms {
		out = append(out, vm.VMID)
	}
	return out
}
