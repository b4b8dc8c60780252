// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package adoption_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/adoption"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

const (
	vmid = 20000
	uuid = "6b0f5f52-5c1a-4a57-9d0b-0c7a3c1f9e55"
)

// inherited is an Env with a VM of sergelogvinov/karpenter-provider-proxmox: the VM's
// name and serial are those of the claim, its UUID is not, its notes have no mark, and
// the claim has hashes of another version.
type inherited struct {
	*testenv.Env
	class *v1alpha1.ProxmoxNodeClass
	claim *karpv1.NodeClaim
}

func inherit(t *testing.T) *inherited {
	t.Helper()
	return inheritInPool(t, "")
}

func inheritInPool(t *testing.T, resourcePool string, options ...testenv.Option) *inherited {
	t.Helper()
	w := testenv.New(t, options...)
	i := &inherited{Env: w, class: w.Class()}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.Named("a")}, Spec: corev1.NodeSpec{ProviderID: fmt.Sprintf("proxmox://region-1/%d", vmid)}}
	w.Create(node)
	node.Status.NodeInfo.SystemUUID = uuid
	w.Expect(w.Kube.Status().Update(t.Context(), node)).To(Succeed())
	i.claim = w.Claim("a", i.class, func(c *karpv1.NodeClaim) {
		c.Finalizers = []string{karpv1.TerminationFinalizer}
		c.Labels[corev1.LabelTopologyZone], c.Labels[corev1.LabelTopologyRegion] = "pve1", testenv.Region
		c.Labels[corev1.LabelInstanceTypeStable], c.Labels[karpv1.CapacityTypeLabelKey] = testenv.InstanceType, karpv1.CapacityTypeOnDemand
		c.Annotations = map[string]string{
			v1alpha1.AnnotationNodeClassHash: "1", v1alpha1.AnnotationNodeClassHashVersion: "v1",
			v1alpha1.AnnotationInPlaceUpdateHash: "2", v1alpha1.AnnotationBootDataStatus: v1alpha1.BootDataInitialized,
		}
	})
	t.Cleanup(func() { i.removeFinalizer() })
	i.claim.Status.ProviderID, i.claim.Status.ImageID, i.claim.Status.NodeName = node.Spec.ProviderID, "1000-1a2b3c", node.Name
	w.Expect(w.Kube.Status().Update(t.Context(), i.claim)).To(Succeed())
	c := w.Client
	i.done(c.CloneVM(t.Context(), proxmox.CloneRequest{
		Host: "pve1", TemplateID: 9000, VMID: vmid, Name: i.claim.Name, Full: true, Storage: "local-lvm", Pool: resourcePool,
		Description: "Karpenter managed instance, class=default, capacity-type=on-demand",
	}))
	i.set("smbios1", proxmox.SMBIOS{UUID: strings.ToUpper(uuid), SKU: testenv.InstanceType, Serial: fmt.Sprintf("h=%s;i=%d", i.claim.Name, vmid)}.Encode())
	i.set("cores", "2")
	i.done(c.StartVM(t.Context(), "pve1", vmid))
	// A poll may have read the configuration before it was complete, and reads it again when the row changes.
	w.Eventually(func() string {
		w.Refresh()
		guest, _ := w.Inventory.View().Guest(testenv.Region, vmid)
		if guest.Config == nil {
			return ""
		}
		return strings.ToLower(guest.Config.SMBIOS().UUID)
	}).Should(Equal(uuid))
	return i
}

// removeFinalizer removes core's finalizer.
func (i *inherited) removeFinalizer() {
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))
	_ = i.Kube.Patch(i.T.Context(), i.claim.DeepCopy(), patch)
}

func (i *inherited) done(task proxmox.UPID, err error) {
	i.T.Helper()
	i.Expect(err).NotTo(HaveOccurred())
	status, err := proxmox.WaitTask(i.T.Context(), i.Client, task, proxmox.WaitOptions{Clock: i.Clock})
	i.Expect(err).NotTo(HaveOccurred())
	i.Expect(status.Err()).NotTo(HaveOccurred())
}

func (i *inherited) set(key, value string) {
	i.T.Helper()
	i.Expect(i.Client.UpdateVM(i.T.Context(), "pve1", vmid, proxmox.ConfigChange{Set: map[string]string{key: value}})).To(Succeed())
}

// replaceBIOS changes the SMBIOS fields, which applies with the next start.
func (i *inherited) replaceBIOS(bios proxmox.SMBIOS) {
	i.T.Helper()
	c := i.Client
	i.done(c.StopVM(i.T.Context(), "pve1", vmid))
	i.set("smbios1", bios.Encode())
	i.done(c.StartVM(i.T.Context(), "pve1", vmid))
	i.Restart(true)
}

func (i *inherited) config() proxmox.VMConfig {
	i.T.Helper()
	cfg, err := i.Client.VMConfig(i.T.Context(), "pve1", vmid)
	i.Expect(err).NotTo(HaveOccurred())
	return cfg
}

func (i *inherited) runs() bool {
	i.T.Helper()
	state, err := i.Client.VMStatus(i.T.Context(), "pve1", vmid)
	i.Expect(err).NotTo(HaveOccurred())
	return state.Running
}

// reconcile reconciles the claim once.
func (i *inherited) reconcile() reconcile.Result {
	i.T.Helper()
	result, err := adoption.NewController(i.Instances.Adopter, i.Events).Reconcile(i.T.Context(), testenv.Reload(i.Env, i.claim))
	i.Expect(err).NotTo(HaveOccurred())
	testenv.Reload(i.Env, i.claim)
	return result
}

func (i *inherited) annotate(value string) {
	i.T.Helper()
	i.Annotate(i.claim, map[string]string{v1alpha1.AnnotationAdopt: value})
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

// delete calls Delete like core until the VM is deleted.
func (i *inherited) deleteVM() {
	i.T.Helper()
	i.Eventually(func() (bool, error) { return i.Instances.Deleter.Delete(i.T.Context(), i.claim) }).
		WithPolling(50 * time.Millisecond).Should(BeTrue())
}

func TestUnadoptedVM(t *testing.T) {
	t.Parallel()
	i := inherit(t)
	before := i.config().Options
	i.Expect(i.reconcile().RequeueAfter).To(BeNumerically(">", 0))
	howTo := fmt.Sprintf("kubectl annotate nodeclaim %s karpenter.proxmox.sinextra.dev/adopt=%s", i.claim.Name, uuid)
	i.Expect(i.Events.Messages(v1alpha1.EventVMNotAdopted)).To(ConsistOf(ContainSubstring(howTo)))
	i.Expect(i.kept()).To(BeTrue())
	_, err := i.get()
	i.Expect(err).To(MatchError(ContainSubstring("another controller created it")))
	i.Expect(err).NotTo(MatchError(proxmox.ErrNotFound), "core would not drain its node")

	i.Expect(i.Kube.Delete(t.Context(), i.claim)).To(Succeed())
	for range 3 {
		i.Expect(i.blocked(v1alpha1.EventVMNotAdopted)).To(ContainSubstring(howTo))
	}
	i.Expect(i.runs()).To(BeTrue())
	i.Expect(i.config().Options).To(Equal(before))

	// Adopted while its claim is being deleted, the VM is deleted.
	i.annotate(uuid)
	i.reconcile()
	i.deleteVM()
	i.Expect(i.VMs()).To(BeEmpty())
}

func TestDeleteClaimWithoutVM(t *testing.T) {
	t.Parallel()
	t.Run("deleted_by_hand", func(t *testing.T) {
		t.Parallel()
		i := inherit(t)
		i.DestroyByHand("pve1", vmid)
		i.Expect(i.kept()).To(BeFalse())
		i.deleteVM()
	})
	t.Run("VMID_of_other_guest", func(t *testing.T) {
		t.Parallel()
		i := inherit(t)
		i.set("name", "database")
		i.replaceBIOS(proxmox.SMBIOS{UUID: "00000000-0000-4000-8000-000000000000"})
		i.Expect(i.kept()).To(BeFalse())
		i.deleteVM()
		i.Expect(i.runs()).To(BeTrue())
	})
}

func TestAdopt(t *testing.T) {
	t.Parallel()
	i := inherit(t)
	before := maps.Clone(i.config().Options)
	i.annotate(strings.ToUpper(uuid))
	i.reconcile()
	i.Expect(i.Events.Reasons(i.claim)).To(Equal([]string{"VMAdopted"}))

	after := i.config().Options
	i.Expect(after["description"]).To(HavePrefix(before["description"]), "the notes of users stay")
	mark, ok := ownership.Read(after["description"])
	i.Expect(ok).To(BeTrue())
	i.Expect(mark).To(And(HaveField("VMID", vmid), HaveField("ClaimUID", string(i.claim.UID)), HaveField("UUID", uuid)))
	delete(before, "description")
	delete(after, "description")
	i.Expect(after).To(Equal(before), "nothing else of a running VM changes")

	in := i.Intent(i.claim)
	i.Expect(in).To(And(HaveField("VMID", vmid), HaveField("Host", "pve1"), HaveField("InstanceType", testenv.InstanceType), HaveField("Cores", 2), HaveField("Storage", "local-lvm")))
	i.Expect(i.claim.Annotations).To(HaveKey(v1alpha1.AnnotationLaunchCompleted))
	i.Expect(i.kept()).To(BeTrue())
	got, err := i.get()
	i.Expect(err).NotTo(HaveOccurred())
	i.Expect(got.ClaimUID).To(Equal(string(i.claim.UID)))
	_, known := i.Instances.VMs.CurrentImage(i.claim, i.class)
	i.Expect(known).To(BeFalse(), "its image is unknown, so it does not drift")
	i.Expect(i.Instances.Updater.UpdateInPlace(t.Context(), i.claim, i.class)).To(Succeed(), "it is updated with its class")
	i.Expect(i.config().Tags()).To(Equal([]string{"karpenter"}))

	// A controller that was killed after it wrote the mark resumes.
	i.Annotate(i.claim, map[string]string{v1alpha1.AnnotationLaunchIntent: "", v1alpha1.AnnotationLaunchCompleted: ""})
	i.reconcile()
	i.Expect(i.Intent(i.claim)).To(Equal(in))
	i.Expect(strings.Count(i.config().Description(), `"claim"`)).To(Equal(1))
	i.Expect(i.reconcile()).To(BeZero(), "adopted once")

	i.deleteVM()
	i.Expect(i.VMs()).To(BeEmpty())
}

func TestAdoptedVMLostMark(t *testing.T) {
	t.Parallel()
	i := inherit(t)
	i.annotate(uuid)
	i.reconcile()
	mark := i.config().Description()
	i.set("description", "cleaned up")
	i.Expect(i.kept()).To(BeTrue())
	i.Expect(i.blocked(v1alpha1.EventOwnershipMarkLost)).To(ContainSubstring(uuid), "the line to add is complete")
	i.Expect(i.runs()).To(BeTrue())
	i.set("description", mark)
	i.replaceBIOS(proxmox.SMBIOS{UUID: "00000000-0000-4000-8000-000000000000"})
	_, err := i.get()
	i.Expect(err).To(MatchError(proxmox.ErrNotFound), "the mark is valid only for its UUID")
}

func TestAdoptRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*inherited)
		value  string
		want   string
	}{
		"other_UUID":       {value: "00000000-0000-4000-8000-000000000000", want: "VM 20000 has the SMBIOS UUID \"" + uuid},
		"no_UUID":          {value: "true", want: `names the VM "true"`},
		"other_name":       {change: func(i *inherited) { i.set("name", "database") }, value: uuid, want: `VM 20000 is named "database"`},
		"no_VM":            {change: func(i *inherited) { i.DestroyByHand("pve1", vmid) }, value: uuid, want: "shows no VM 20000"},
		"other_region":     {change: func(i *inherited) { i.claim.Status.ProviderID = "proxmox://elsewhere/20000" }, value: uuid, want: `region "elsewhere" is not in the cloud config`},
		"node_of_other_VM": {change: func(i *inherited) { i.reportUUID("11111111-0000-4000-8000-000000000000") }, value: uuid, want: "the node does not run in this VM"},
		"other_kubernetes_cluster": {change: func(i *inherited) {
			i.set("description", ownership.Mark{VMID: vmid, KubeCluster: "another", ClaimUID: string(i.claim.UID)}.Notes(""))
		}, value: uuid, want: "belongs to another Kubernetes cluster"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := inherit(t)
			if c.change != nil {
				c.change(i)
				i.Expect(i.Kube.Status().Update(t.Context(), i.claim)).To(Succeed())
			}
			i.annotate(c.value)
			i.Sim.ResetRequests()
			i.Expect(i.reconcile().RequeueAfter).To(BeNumerically(">", 0), "it is retried")
			i.Expect(i.Events.Messages("AdoptionRefused")).To(ConsistOf(ContainSubstring(c.want)))
			i.Expect(i.claim.Annotations).NotTo(HaveKey(v1alpha1.AnnotationLaunchIntent))
			for _, call := range i.Sim.Requests() {
				i.Expect(call.Method).To(Equal("GET"), call.Path)
			}
		})
	}
}

func (i *inherited) reportUUID(value string) {
	i.T.Helper()
	node := &corev1.Node{}
	node.Name = i.claim.Status.NodeName
	testenv.Reload(i.Env, node)
	node.Status.NodeInfo.SystemUUID = value
	i.Expect(i.Kube.Status().Update(i.T.Context(), node)).To(Succeed())
}

// A NodePool may set the annotation on claims of this controller, where it has no effect.
func TestAdoptAnnotationOnOwnClaim(t *testing.T) {
	t.Parallel()
	w := testenv.New(t)
	claim := w.Launched("ours", w.Class(), func(c *karpv1.NodeClaim) { c.Annotations = map[string]string{v1alpha1.AnnotationAdopt: uuid} })
	cfg, err := w.Client.VMConfig(t.Context(), "pve1", w.Intent(claim).VMID)
	w.Expect(err).NotTo(HaveOccurred())
	mark, _ := ownership.Read(cfg.Description())
	w.Expect(mark).To(And(HaveField("ClaimUID", string(claim.UID)), HaveField("UUID", "")))
	w.Eventually(func() (bool, error) { return w.Instances.Deleter.Delete(t.Context(), claim) }).
		WithPolling(50 * time.Millisecond).Should(BeTrue())
	w.Expect(w.VMs()).To(BeEmpty())
}

func TestReconcileIgnoresOtherClaims(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	class := w.Class()
	ours, fresh := w.Planned("ours", class), w.Claim("fresh", class)
	w.Annotate(ours, map[string]string{v1alpha1.AnnotationAdopt: uuid})
	w.Sim.ResetRequests()
	for _, claim := range []*karpv1.NodeClaim{ours, fresh} {
		result, err := adoption.NewController(w.Instances.Adopter, w.Events).Reconcile(t.Context(), claim)
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(result).To(BeZero())
	}
	w.Expect(w.Sim.Requests()).To(BeEmpty())
}
