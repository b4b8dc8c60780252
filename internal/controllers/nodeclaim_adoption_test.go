// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/watch"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

const (
	vmid      = 20000
	uuid      = "6b0f5f52-5c1a-4a57-9d0b-0c7a3c1f9e55"
	otherUUID = "00000000-0000-4000-8000-000000000000"
)

// retried is the result for a claim that is checked again.
var retried = reconcile.Result{RequeueAfter: watch.Again}

// inherited is an Env with a VM of sergelogvinov/karpenter-provider-proxmox: the VM's
// name and serial are those of the claim, its UUID is not, its notes have no mark, and
// the claim has hashes of another version.
type inherited struct {
	*testenv.Env
	class *v1alpha1.ProxmoxNodeClass
	claim *karpv1.NodeClaim
	node  *corev1.Node
}

// inherit returns an inherited VM that was cloned into a resource pool, or none.
func inherit(t *testing.T, resourcePool string, options ...testenv.Option) *inherited {
	t.Helper()
	w := testenv.New(t, append(options, testenv.NoPolling())...)
	i := &inherited{Env: w, class: w.Class()}
	i.claim = w.Claim("a", i.class, func(c *karpv1.NodeClaim) {
		c.Finalizers = []string{karpv1.TerminationFinalizer}
		c.Labels[corev1.LabelTopologyZone], c.Labels[corev1.LabelTopologyRegion] = "pve1", testenv.Region
		c.Labels[corev1.LabelInstanceTypeStable], c.Labels[karpv1.CapacityTypeLabelKey] = testenv.InstanceType, karpv1.CapacityTypeOnDemand
		c.Annotations = map[string]string{
			v1alpha1.AnnotationNodeClassHash: "1", v1alpha1.AnnotationNodeClassHashVersion: "v1",
			v1alpha1.Group + "/proxmoxnodeinplaceupdate-hash": "2", v1alpha1.Group + "/proxmoxcloudinit-status": "Initialized",
		}
	})
	i.claim.Status.ProviderID, i.claim.Status.ImageID = fmt.Sprintf("proxmox://region-1/%d", vmid), "1000-1a2b3c"
	i.node = w.Node(i.claim)
	i.reportUUID(uuid)
	i.Wait(w.Client.CloneVM(t.Context(), proxmox.CloneRequest{
		Host: "pve1", TemplateID: 9000, VMID: vmid, Name: i.claim.Name, Full: true, Storage: "local-lvm", Pool: resourcePool,
		Description: "Karpenter managed instance, class=default, capacity-type=on-demand",
	}))
	i.set("smbios1", proxmox.SMBIOS{UUID: strings.ToUpper(uuid), SKU: testenv.InstanceType, Serial: fmt.Sprintf("h=%s;i=%d", i.claim.Name, vmid)}.Encode())
	i.set("cores", "2")
	i.Wait(w.Client.StartVM(t.Context(), "pve1", vmid))
	i.WaitStatus(vmid, "running")
	return i
}

// reportUUID does what the kubelet does.
func (i *inherited) reportUUID(uuid string) {
	i.T.Helper()
	testenv.ModifyStatus(i.Env, i.node, func(n *corev1.Node) { n.Status.NodeInfo.SystemUUID = uuid })
}

func (i *inherited) set(key, value string) {
	i.T.Helper()
	i.Expect(i.Client.UpdateVM(i.T.Context(), "pve1", vmid, proxmox.ConfigChange{Set: map[string]string{key: value}})).To(Succeed())
}

// replaceBIOS changes the UUID, which applies with the next start.
func (i *inherited) replaceBIOS(uuid string) {
	i.T.Helper()
	i.Wait(i.Client.StopVM(i.T.Context(), "pve1", vmid))
	i.set("smbios1", proxmox.SMBIOS{UUID: uuid}.Encode())
	i.Wait(i.Client.StartVM(i.T.Context(), "pve1", vmid))
	i.Restart(true)
}

func (i *inherited) config() proxmox.VMConfig {
	i.T.Helper()
	return i.VMConfig(instance.Intent{Host: "pve1", VMID: vmid})
}

func (i *inherited) expectRunning() {
	i.T.Helper()
	i.Expect(i.Client.VMStatus(i.T.Context(), "pve1", vmid)).To(HaveField("Running", true))
}

// reconcile reconciles the claim once.
func (i *inherited) reconcile() reconcile.Result {
	i.T.Helper()
	defer testenv.Reload(i.Env, i.claim)
	return testenv.Reconcile(i.Env, newVMUpdateController(i.Env, i.Kube), i.claim)
}

// mark appends the ownership mark to the notes, like an administrator.
func (i *inherited) mark(changed func(*ownership.Mark)) {
	i.T.Helper()
	mark := ownership.Mark{VMID: vmid, KubeCluster: i.KubeCluster, ClaimUID: string(i.claim.UID), UUID: uuid}
	change(&mark, changed)
	i.set("description", i.config().Description()+"\n"+mark.Comment())
}

// kept reports whether the VM is listed or may exist: core deletes claims that are not listed.
func (i *inherited) kept() bool {
	i.T.Helper()
	i.Refresh()
	vms, err := i.Instances.VMs.List()
	i.Expect(err).NotTo(HaveOccurred())
	return slices.ContainsFunc(vms, func(vm instance.VM) bool { return vm.ClaimUID == string(i.claim.UID) }) || i.Instances.VMs.MayExist(i.claim)
}

func (i *inherited) get() (instance.VM, error) {
	return i.Instances.VMs.Get(i.T.Context(), v1alpha1.ProviderID{Region: testenv.Region, VMID: vmid})
}

// blocked checks that a delete is blocked, and returns the message.
func (i *inherited) blocked(reason string) string {
	i.T.Helper()
	deleted, err := i.Instances.Deleter.Delete(i.T.Context(), testenv.Reload(i.Env, i.claim))
	i.Expect(deleted).To(BeFalse())
	blocked, ok := errors.AsType[*instance.BlockedError](err)
	i.Expect(ok).To(BeTrue(), "%v", err)
	i.Expect(blocked.Reason).To(Equal(reason))
	return blocked.Message
}

func TestUnadoptedVM(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		i := inherit(t, "")
		before := i.config().Options
		i.Expect(i.reconcile()).To(Equal(retried))
		howTo := i.Events.Messages(v1alpha1.EventVMNotAdopted)
		i.Expect(howTo).To(ConsistOf(ContainSubstring("append this line")))
		mark, ok := ownership.Read(howTo[0])
		i.Expect(ok).To(BeTrue())
		i.Expect(mark).To(And(HaveField("VMID", vmid), HaveField("ClaimUID", string(i.claim.UID)), HaveField("KubeCluster", i.KubeCluster), HaveField("UUID", uuid)))
		i.Expect(i.kept()).To(BeTrue())
		_, err := i.get()
		i.Expect(err).To(MatchError(ContainSubstring("another controller created it")))
		i.Expect(err).NotTo(MatchError(proxmox.ErrNotFound), "core would not drain its node")

		i.Expect(i.Kube.Delete(t.Context(), i.claim)).To(Succeed())
		for range 3 {
			i.Expect(i.blocked(v1alpha1.EventVMNotAdopted)).To(ContainSubstring(mark.Comment()))
		}
		i.expectRunning()
		i.Expect(i.config().Options).To(Equal(before))

		// Adopted while its claim is being deleted, the VM is deleted.
		i.set("description", i.config().Description()+"\n"+mark.Comment())
		i.Delete(i.claim)
		i.Expect(i.VMs()).To(BeEmpty())
	})
}

func TestDeleteClaimWithoutVM(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		i := inherit(t, "")
		i.set("name", "database")
		i.replaceBIOS(otherUUID)
		i.Expect(i.kept()).To(BeFalse())
		i.Delete(i.claim)
		i.expectRunning() // another guest has the VMID

		i.DestroyByHand("pve1", vmid)
		i.Expect(i.kept()).To(BeFalse())
		i.Delete(i.claim)
	})
}

func TestAdopt(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		i := inherit(t, "")
		i.Refresh()
		i.Expect(i.reconcile()).To(Equal(retried))
		// The configuration is not due in the cache.
		i.mark(nil)
		before := i.config().Options
		i.Clock.Advance(retried.RequeueAfter)
		i.Expect(i.reconcile()).To(BeZero())
		i.Expect(i.Events.Reasons(i.claim)).To(ContainElement("VMAdopted"))
		i.Expect(i.config().Options).To(Equal(before), "the VM is not changed")

		in := i.Intent(i.claim)
		i.Expect(in).To(And(HaveField("VMID", vmid), HaveField("Host", "pve1"), HaveField("InstanceType", testenv.InstanceType),
			HaveField("Cores", 2), HaveField("Storage", "local-lvm")))
		i.Expect(i.Instances.VMs.IsLaunched(i.claim)).To(BeTrue())
		i.Expect(i.kept()).To(BeTrue())
		i.Expect(i.get()).To(HaveField("ClaimUID", string(i.claim.UID)))
		i.Expect(i.Instances.VMs.ImageDrift(i.claim, i.class)).To(BeEmpty(), "its image is unknown")
		i.Expect(i.Instances.Updater.UpdateInPlace(t.Context(), i.claim, i.class)).To(Succeed())
		i.Expect(i.config().Tags()).To(BeEmpty(), "it is not updated with its class")
		i.set("description", strings.Replace(i.config().Description(), "} -->", `,"applied":{}} -->`, 1))
		i.Expect(i.Instances.Updater.UpdateInPlace(t.Context(), i.claim, i.class)).To(Succeed())
		i.Expect(i.config().Tags()).To(Equal([]string{"karpenter"}), "after an administrator allowed it")

		i.Refresh()
		i.Expect(i.reconcile()).To(BeZero(), "adopted once")

		i.Delete(i.claim)
		i.Expect(i.VMs()).To(BeEmpty())
	})
}

func TestAdoptedVMLostMark(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		i := inherit(t, "")
		i.mark(nil)
		i.reconcile()
		mark := i.config().Description()
		i.set("description", "cleaned up")
		i.Expect(i.kept()).To(BeTrue())
		i.Expect(i.blocked(v1alpha1.EventOwnershipMarkLost)).To(ContainSubstring(uuid), "the line to add is complete")
		i.expectRunning()
		i.set("description", mark)
		i.replaceBIOS(otherUUID)
		_, err := i.get()
		i.Expect(err).To(HaveOccurred(), "the mark is valid only for its UUID")
		i.Expect(err).NotTo(MatchError(proxmox.ErrNotFound), "its name is that of the claim")
	})
}

// A VM whose mark, claim and node do not match is neither adopted nor deleted.
func TestAdoptRefused(t *testing.T) {
	t.Parallel()
	lock := func(lock string) func(*inherited) {
		return func(i *inherited) { i.Expect(i.Sim.SetConfigLock(vmid, lock)).To(Succeed()) }
	}
	for name, test := range map[string]struct {
		mark          func(*ownership.Mark)
		fail, recover func(*inherited)
		want          string
	}{
		"other_UUID":       {mark: func(m *ownership.Mark) { m.UUID = otherUUID }, want: "SMBIOS UUID is not the one"},
		"no_UUID":          {mark: func(m *ownership.Mark) { m.UUID = "" }, want: "SMBIOS UUID is not the one"},
		"other_VMID":       {mark: func(m *ownership.Mark) { m.VMID = 20001 }, want: "written for VM 20001"},
		"other_claim":      {mark: func(m *ownership.Mark) { m.ClaimUID = otherUUID }, want: "belongs to another NodeClaim"},
		"other_cluster":    {mark: func(m *ownership.Mark) { m.KubeCluster = "another" }, want: "belongs to another Kubernetes cluster"},
		"other_name":       {fail: func(i *inherited) { i.set("name", "database") }, recover: func(i *inherited) { i.set("name", i.claim.Name) }, want: `its name is "database"`},
		"node_of_other_VM": {fail: func(i *inherited) { i.reportUUID(otherUUID) }, recover: func(i *inherited) { i.reportUUID(uuid) }, want: "the node does not run in this VM"},
		"locked":           {fail: lock("backup"), recover: lock(""), want: "it is locked (backup)"},
	} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			i := inherit(t, "")
			i.mark(test.mark)
			change(i, test.fail)
			i.Sim.ResetRequests()
			i.Expect(i.reconcile()).To(Equal(retried))
			i.Expect(i.Events.Messages(v1alpha1.EventAdoptionRefused)).To(ConsistOf(ContainSubstring(test.want)))
			i.Expect(i.claim.Annotations).NotTo(HaveKey(v1alpha1.AnnotationLaunchedBy))
			i.Expect(i.Sim.Requests()).NotTo(ContainElement(HaveField("Method", Not(Equal("GET")))))
			i.Restart(true) // it reads the configuration
			i.Expect(i.kept()).To(BeTrue())
			i.Expect(i.Kube.Delete(t.Context(), i.claim)).To(Succeed())
			i.Expect(i.blocked(v1alpha1.EventAdoptionRefused)).To(ContainSubstring(test.want))
			i.expectRunning()
			if test.recover != nil {
				test.recover(i)
				i.Expect(i.reconcile()).To(BeZero())
				i.Expect(i.claim.Annotations).To(HaveKey(v1alpha1.AnnotationLaunchedBy))
			}
		})
	}
}

func TestAdoptInvisible(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		i := inherit(t, pvesim.PoolID, testenv.Scenario(pvesim.PoolScoped, withAdministrator))
		i.Expect(administrator(i.Env).MoveToPool(t.Context(), vmid, pvesim.PoolID, "")).To(Succeed())
		i.Refresh()
		i.Expect(i.reconcile()).To(Equal(retried))
		i.Expect(i.Events.Messages(v1alpha1.EventVMNotVisible)).To(ConsistOf(
			ContainSubstring("the token may not read VM 20000 of region region-1, so it cannot be adopted")))
	})
}

// limitedReads is a client that requires a deadline for reading a VM.
type limitedReads struct{ proxmox.Client }

func (c limitedReads) VMConfig(ctx context.Context, host string, vmid int) (proxmox.VMConfig, error) {
	if _, ok := ctx.Deadline(); !ok {
		return proxmox.VMConfig{}, errors.New("no deadline")
	}
	return c.Client.VMConfig(ctx, host, vmid)
}

// VMs that no list shows are read at a rate that does not depend on their number.
func TestAdoptUnlisted(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := testenv.NewFake(t, testenv.NoPolling())
		w.Clients[testenv.Region] = limitedReads{w.Client}
		w.Restart(true)
		claims := make([]*karpv1.NodeClaim, 2)
		for n := range claims {
			claims[n] = w.Claim(fmt.Sprint("a", n), w.NodeClass)
			claims[n].Status.ProviderID = fmt.Sprintf("proxmox://region-1/%d", vmid+n)
		}
		for _, step := range []struct {
			wait time.Duration
			// reads is how often each VM was read.
			reads []int
		}{{0, []int{1, 0}}, {time.Minute, []int{1, 1}}, {time.Minute, []int{1, 1}}, {15 * time.Minute, []int{2, 1}}} {
			w.Clock.Advance(step.wait)
			for range 3 {
				for _, claim := range claims {
					w.Expect(newVMUpdateController(w, w.Kube).Reconcile(t.Context(), claim)).To(Equal(retried))
				}
			}
			for n, count := range step.reads {
				w.Expect(w.Sim.CountRequests("GET", fmt.Sprintf("/nodes/pve1/qemu/%d/config", vmid+n))).To(Equal(count), "VM %d", vmid+n)
			}
		}
	})
}
