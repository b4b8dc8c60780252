// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"os"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// written is a claim on which another release of the controller has written an intent.
func (w *world) written(name, intent string) *karpv1.NodeClaim {
	w.t.Helper()
	claim := w.claim(name)
	claim.Annotations = map[string]string{v1alpha1.AnnotationLaunchIntent: intent}
	w.Expect(w.kube.Update(w.t.Context(), claim)).To(Succeed())
	claim.Status.ProviderID = "proxmox://" + region + "/20123"
	w.Expect(w.kube.Status().Update(w.t.Context(), claim)).To(Succeed())
	return w.reread(claim)
}

func (w *world) earlierIntent() string {
	w.t.Helper()
	raw, err := os.ReadFile("testdata/formats/intent-v1.json")
	w.Expect(err).NotTo(HaveOccurred())
	return string(raw)
}

// laterIntent is what a later release might write: the same place, the rest otherwise.
const laterIntent = `{"v":2,"region":"region-1","host":"pve1","vmid":20123,"template":{"host":"pve1","id":9000},"shape":{"cores":2}}`

// remark replaces a VM's mark by that of a later release.
func (w *world) remark(claim *karpv1.NodeClaim, host string, vmid int) {
	w.t.Helper()
	cfg, err := w.client().VMConfig(w.t.Context(), host, vmid)
	w.Expect(err).NotTo(HaveOccurred())
	mark := ownership.Mark{VMID: vmid, KubeCluster: kubeCluster, ClaimUID: string(claim.UID)}.Comment()
	later := strings.Replace(mark, `"v":1`, `"v":2,"later":["x"]`, 1)
	w.Expect(later).NotTo(Equal(mark))
	w.Expect(w.client().UpdateVM(w.t.Context(), host, vmid, proxmox.ConfigChange{Set: map[string]string{"description": later}, Digest: cfg.Digest})).To(Succeed())
}

func TestALaunchOfAnEarlierReleaseIsCarriedOn(t *testing.T) {
	t.Parallel()
	for name, intent := range map[string]func(string) string{
		"as it was written": func(s string) string { return s },
		// After a downgrade: a later release added a field that may be ignored.
		"with a field more": func(s string) string { return strings.Replace(s, `"v": 1,`, `"v": 1, "later": {"a": ["b"]},`, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2)
			p := w.process()
			claim := w.written("pool-abc", intent(w.earlierIntent()))
			planned, err := p.Planner.Plan(t.Context(), claim, w.class, nil)
			w.Expect(err).NotTo(HaveOccurred())
			w.Expect(planned.VMID).To(Equal(20123), "a plan stands, whoever made it")
			w.Expect(p.Launcher.Launch(t.Context(), claim, w.class)).To(Succeed())
			w.Expect(w.ours()).To(ConsistOf(HaveField("VMID", 20123)))
			w.deleted(p, w.reread(claim))
			w.expectNothingLeft()
		})
	}
}

func TestALaunchOfALaterReleaseIsLeftToIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	p := w.process()
	claim := w.written("pool-abc", laterIntent)
	p.Planner.RestoreReservation(claim)
	w.sim.ResetRequests()
	_, err := p.Planner.Plan(t.Context(), claim, w.class, nil)
	w.Expect(err).To(MatchError(instance.ErrNewerVersion), "another VMID would be a second VM")
	err = p.Launcher.Launch(t.Context(), claim, w.class)
	w.Expect(err).To(MatchError(instance.ErrNewerVersion))
	w.Expect(err).NotTo(BeAssignableToTypeOf(&instance.LaunchError{}), "to give up would remove what the later release made")
	for _, call := range w.sim.Requests() {
		w.Expect(call.Method).To(Equal("GET"), call.Path)
	}
	w.Expect(w.reread(claim).Annotations).To(HaveKeyWithValue(v1alpha1.AnnotationLaunchIntent, laterIntent))
	w.Expect(p.VMs.MayExist(claim)).To(BeTrue())
	w.Expect(p.inventory.View().Reservations).To(HaveKeyWithValue(string(claim.UID), HaveField("VMID", 20123)), "nobody else gets its VMID")

	w.deleted(p, claim)
	w.expectNothingLeft()
}

// A claim whose intent cannot be read does not tell which template is being cloned.
func TestADeleteWithoutAReadableIntentWaitsForAnyClone(t *testing.T) {
	t.Parallel()
	for name, intent := range map[string]string{"of a later release": laterIntent, "spoilt by hand": "oops"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2)
			p := w.process()
			claim := w.written("pool-abc", intent)
			_, err := w.sim.AddFault(pvesim.Fault{Task: "qmclone", Hang: true})
			w.Expect(err).NotTo(HaveOccurred())
			mark := ownership.Mark{VMID: 20123, KubeCluster: kubeCluster, ClaimUID: string(claim.UID)}
			task, err := w.client().CloneVM(t.Context(), proxmox.CloneRequest{Host: "pve1", TemplateID: 9000, VMID: 20123, Name: claim.Name, Description: mark.Notes("")})
			w.Expect(err).NotTo(HaveOccurred())
			for range 3 {
				gone, err := p.Deleter.Delete(t.Context(), claim)
				w.Expect(err).NotTo(HaveOccurred())
				w.Expect(gone).To(BeFalse(), "the VM is still to come")
			}
			// An admin ends it; had it ended by itself, the VM would say whose it is.
			w.Expect(w.client().CancelTask(t.Context(), task)).To(Succeed())
			w.deleted(p, claim)
			w.expectNothingLeft()
		})
	}
}

func TestAVMMarkedByALaterReleaseIsNeitherTouchedNorForgotten(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	claim := w.launched(w.process(), "pool-abc")
	in := w.intentOf(claim)
	w.remark(claim, in.Host, in.VMID)
	p := w.process() // the downgraded one

	vms, err := p.VMs.List()
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(vms).To(ConsistOf(HaveField("Identity.ClaimUID", string(claim.UID))), "core deletes the claims of what is not listed")
	vm, err := p.VMs.Get(t.Context(), v1alpha1.ProviderID{Region: in.Region, VMID: in.VMID})
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(vm.ClaimUID).To(Equal(string(claim.UID)))

	w.blockedAs(p, claim, instance.BlockedNewerVersion)
	gone, err := p.Deleter.DeleteOrphan(t.Context(), vm)
	w.Expect(gone).To(BeFalse())
	w.Expect(err).To(MatchError(ContainSubstring(instance.ErrNewerVersion.Error())))
	w.Expect(p.Updater.UpdateInPlace(t.Context(), claim, w.class)).To(MatchError(instance.ErrNewerVersion))
	w.Expect(p.Power.Reboot(t.Context(), claim, "op-1")).To(MatchError(instance.ErrNewerVersion))
	_, err = p.Power.PowerOn(t.Context(), claim)
	w.Expect(err).To(MatchError(instance.ErrNewerVersion))
	// Its launch, had it not been over: the VMID is not somebody else's.
	delete(claim.Annotations, v1alpha1.AnnotationLaunchCompleted)
	w.Expect(p.Launcher.Launch(t.Context(), claim, w.class)).To(MatchError(instance.ErrNewerVersion))
	status, err := w.client().VMStatus(t.Context(), in.Host, in.VMID)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(status.Running).To(BeTrue())

	// The later release is back, and writes what both can read.
	id := instance.Identity{Region: in.Region, VMID: in.VMID, ClaimUID: string(claim.UID), KubeCluster: kubeCluster}
	w.Expect(w.client().UpdateVM(t.Context(), in.Host, in.VMID, proxmox.ConfigChange{Set: map[string]string{
		"description": instance.Description(id, instance.Notes{Claim: claim.Name}, nil, nil),
	}})).To(Succeed())
	w.deleted(p, claim)
	w.Eventually(w.ours).WithTimeout(10 * time.Second).Should(BeEmpty())
}
