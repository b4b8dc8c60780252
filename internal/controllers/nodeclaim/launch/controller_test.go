// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package launch_test

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/backoff"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/launch"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func controller(w *testenv.Env, pods ...types.NamespacedName) *launch.Controller {
	return launch.NewController(launch.Deps{
		Kube: w.Kube, Launcher: w.Instances.Launcher, Health: w.Instances.Health, Types: w.Types, Recorder: w.Events, Clock: w.Clock,
		Pods: func(string) []types.NamespacedName { return pods }, FailureBackoff: backoff.Exponential{Initial: 3 * time.Minute, Max: 30 * time.Minute},
	})
}

// offered reports whether a Host is available for claims of a class.
func offered(w *testenv.Env, class *v1alpha1.ProxmoxNodeClass, host string) bool {
	w.T.Helper()
	for _, it := range w.Types.List(class, "") {
		if it.Name != testenv.InstanceType {
			continue
		}
		for _, offering := range it.Offerings {
			if offering.Requirements.Get(corev1.LabelTopologyZone).Has(host) {
				return offering.Available
			}
		}
	}
	w.T.Fatalf("%s is not offered on %s at all", testenv.InstanceType, host)
	return false
}

// unstartable is a scenario whose templates have a bridge that no Host has.
func unstartable(s *pvesim.Scenario) {
	for i := range s.Guests {
		if s.Guests[i].VMID >= 9000 {
			s.Guests[i].Config["net0"] = "virtio=BC:24:11:00:00:01,bridge=vmbr7"
		}
	}
}

// full is a scenario without free CPUs while guest 101 exists.
func full(s *pvesim.Scenario) { s.Hosts[0].Cores = 2 }

func TestLaunch(t *testing.T) {
	t.Parallel()
	w := testenv.New(t)
	class := w.Class()
	w.StartManager(func(kube client.Client) testenv.Registrar {
		return launch.NewController(launch.Deps{Kube: kube, Launcher: w.Instances.Launcher, Health: w.Instances.Health, Types: w.Types, Recorder: w.Events, Clock: w.Clock,
			Pods: func(string) []types.NamespacedName { return nil }, FailureBackoff: backoff.Exponential{Initial: 3 * time.Minute, Max: 30 * time.Minute}})
	})
	claim := w.Planned("a", class)
	w.Eventually(func() string {
		return testenv.Reload(w, claim).Annotations[v1alpha1.AnnotationLaunchCompleted]
	}).ShouldNot(BeEmpty())
	w.Expect(claim.Annotations[v1alpha1.AnnotationLaunchProgress]).To(ContainSubstring("Started"))
	w.Expect(w.VMs()).To(ConsistOf(HaveField("VMID", w.Intent(claim).VMID)))
	w.Expect(w.Running(claim)).To(BeTrue())
	w.Eventually(func() []string { return w.Events.Reasons(claim) }).Should(Equal([]string{"VMLaunched"}))
	w.Expect(w.Events.Messages("VMLaunched")).To(ConsistOf(HavePrefix(fmt.Sprintf("Launched VM %d on host pve1 of region region-1 in ", w.Intent(claim).VMID))))
}

func TestReconcileNotPending(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	class := w.Class()
	done, unplanned := w.Planned("done", class), w.Claim("unplanned", class)
	w.Annotate(done, map[string]string{v1alpha1.AnnotationLaunchCompleted: time.Now().Format(time.RFC3339)})
	going := w.Planned("going", class, func(c *karpv1.NodeClaim) { c.Finalizers = []string{"example.com/hold"} })
	w.Expect(w.Kube.Delete(t.Context(), going)).To(Succeed())
	w.Sim.ResetRequests()
	for _, claim := range []*karpv1.NodeClaim{done, unplanned, testenv.Reload(w, going)} {
		_, err := controller(w).Reconcile(t.Context(), claim)
		w.Expect(err).NotTo(HaveOccurred())
	}
	w.Expect(w.Sim.Requests()).To(BeEmpty())
}

func TestLaunchFailed(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.Hosts(2), testenv.Scenario(unstartable))
	class := w.Class()
	other := w.Class(func(c *v1alpha1.ProxmoxNodeClass) { c.Name = w.Named("other") })
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.Name, Name: "waiting"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	w.Create(pod)
	c := controller(w, client.ObjectKeyFromObject(pod), types.NamespacedName{Namespace: w.Name, Name: "gone"})
	claim := w.Planned("a", class)
	host := w.Intent(claim).Host
	_, err := c.Reconcile(t.Context(), claim)
	w.Expect(err).NotTo(HaveOccurred(), "it is not retried")

	w.Expect(w.IsDeleted(claim)).To(BeTrue())
	w.Expect(w.Events.Reasons(claim)).To(Equal([]string{v1alpha1.EventStartFailed, events.InsufficientCapacityError}))
	w.Expect(w.Events.Messages(v1alpha1.EventStartFailed)).To(ConsistOf(ContainSubstring("bridge 'vmbr7' does not exist")))
	w.Expect(w.Events.Reasons(pod)).To(Equal([]string{events.InsufficientCapacityError}))
	w.Expect(offered(w, class, host)).To(BeFalse())
	w.Expect(offered(w, other, host)).To(BeTrue(), "other classes are not affected")
	w.Expect(offered(w, class, testenv.OtherHost(host))).To(BeTrue(), "other hosts are not affected")

	w.Clock.Advance(3*time.Minute + time.Second)
	w.Expect(offered(w, class, host)).To(BeTrue(), "retried after the backoff")
	again := w.Planned("b", class)
	_, err = c.Reconcile(t.Context(), again)
	w.Expect(err).NotTo(HaveOccurred())
	host = w.Intent(again).Host
	w.Clock.Advance(3*time.Minute + time.Second)
	w.Expect(offered(w, class, host)).To(BeFalse(), "with a longer backoff after another failure")
	w.Clock.Advance(3 * time.Minute)
	w.Expect(offered(w, class, host)).To(BeTrue())
}

func TestLaunchStorageFull(t *testing.T) {
	t.Parallel()
	w := testenv.New(t)
	class := w.Class()
	other := w.Class(func(c *v1alpha1.ProxmoxNodeClass) { c.Name = w.Named("other") })
	claim := w.Planned("a", class)
	_, err := w.Sim.AddFault(pvesim.Fault{Task: "qmclone", Fail: "lvcreate 'pve/vm-1-disk-0' error: Cannot create new thin volume, free space in thin pool pve/data reached threshold."})
	w.Expect(err).NotTo(HaveOccurred())
	_, err = controller(w).Reconcile(t.Context(), claim)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(w.IsDeleted(claim)).To(BeTrue())
	w.Expect(w.Events.Reasons(claim)).To(ContainElement(v1alpha1.EventStorageFull))
	w.Expect(offered(w, other, "pve1")).To(BeFalse())
}

func TestLaunchTransientErrors(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]pvesim.Fault{
		"unreachable_host": {Method: "POST", Path: "/nodes/*/qemu/*/clone", Status: 595, Message: "No route to host", Count: 2},
		"no_worker":        {Method: "POST", Path: "/nodes/*/qemu/*/clone", Status: 500, Message: "got no worker upid - start worker failed", Count: 2},
		"clone_locked":     {Task: "qmclone", Fail: "can't lock file '/var/lock/qemu-server/lock-9000.conf' - got timeout", Count: 2},
		"lost_response":    {Method: "POST", Path: "/nodes/*/qemu/*/clone", DropAfter: true, Count: 1},
		"config_conflict":  {Method: "PUT", Path: "/nodes/*/qemu/*/config", Status: 500, Message: "can't lock file '/var/lock/qemu-server/lock-20001.conf' - got timeout", Count: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testenv.New(t)
			class := w.Class()
			claim := w.Planned("a", class)
			_, err := w.Sim.AddFault(fault)
			w.Expect(err).NotTo(HaveOccurred())
			c := controller(w)
			w.Eventually(func() error {
				_, err := c.Reconcile(t.Context(), testenv.Reload(w, claim))
				return err
			}).Should(Succeed())
			w.Expect(testenv.Reload(w, claim).Annotations).To(HaveKey(v1alpha1.AnnotationLaunchCompleted))
			w.Expect(w.Sim.Faults()[0].Hits).To(BeNumerically(">", 0))
			w.Expect(w.VMs()).To(HaveLen(1))
			w.Expect(w.Events.Reasons(claim)).To(Equal([]string{"VMLaunched"}))
			w.Expect(offered(w, class, "pve1")).To(BeTrue())
		})
	}
}

func TestLaunchRetryTimeout(t *testing.T) {
	t.Parallel()
	w := testenv.New(t)
	class := w.Class()
	claim := w.Planned("a", class)
	_, err := w.Sim.AddFault(pvesim.Fault{Method: "POST", Path: "/nodes/*/qemu/*/clone", Status: 595, Message: "No route to host"})
	w.Expect(err).NotTo(HaveOccurred())
	c := controller(w)
	_, err = c.Reconcile(t.Context(), claim)
	w.Expect(err).To(HaveOccurred(), "retried")
	w.Expect(w.IsDeleted(claim)).To(BeFalse())
	w.Clock.Advance(2 * time.Minute)
	_, err = c.Reconcile(t.Context(), claim)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(w.IsDeleted(claim)).To(BeTrue())
	w.Expect(w.Events.Reasons(claim)).To(ContainElement(v1alpha1.EventLaunchTimeout))
	w.Expect(offered(w, class, "pve1")).To(BeFalse())
}

// parked returns a claim of a static NodePool that waits for capacity.
func parked(w *testenv.Env, class *v1alpha1.ProxmoxNodeClass) *karpv1.NodeClaim {
	w.T.Helper()
	claim := w.Claim("a", class)
	in, err := w.Instances.Planner.Park(w.T.Context(), claim, class, nil)
	w.Expect(err).NotTo(HaveOccurred())
	testenv.Reload(w, claim)
	claim.Status.ProviderID = in.ProviderID()
	w.Expect(w.Kube.Status().Update(w.T.Context(), claim)).To(Succeed())
	return claim
}

func TestLaunchParkedClaim(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.Scenario(full))
	claim := parked(w, w.Class())
	c := controller(w)
	result, err := c.Reconcile(t.Context(), claim)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(result.RequeueAfter).To(BeNumerically(">", 0))
	w.Expect(w.VMs()).To(BeEmpty())
	w.Expect(w.IsDeleted(claim)).To(BeFalse())

	w.DestroyByHand("pve1", 101)
	w.Refresh()
	_, err = c.Reconcile(t.Context(), claim)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(testenv.Reload(w, claim).Annotations).To(HaveKey(v1alpha1.AnnotationLaunchCompleted))
	w.Expect(w.Intent(claim).Parked).To(BeFalse())
	w.Expect(w.Intent(claim).ProviderID()).To(Equal(claim.Status.ProviderID), "core knows its providerID already")
}

func TestParkedClaimTimeout(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.Scenario(full))
	class := w.Class()
	claim := parked(w, class)
	w.Clock.Advance(6 * time.Minute)
	_, err := controller(w).Reconcile(t.Context(), claim)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(w.IsDeleted(claim)).To(BeTrue())
	w.Expect(w.Events.Messages(v1alpha1.EventInsufficientCapacity)).To(ConsistOf(ContainSubstring("CPU")))
}

func TestLaunchMissingNodeClass(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	class := w.Class()
	claim := w.Planned("a", class)
	w.Expect(w.Kube.Delete(t.Context(), class)).To(Succeed())
	_, err := controller(w).Reconcile(t.Context(), claim)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(w.IsDeleted(claim)).To(BeTrue())
	w.Expect(w.Events.Messages(v1alpha1.EventInvalidLaunchIntent)).To(ConsistOf("NodeClass " + class.Name + " does not exist"))
	w.Expect(w.VMs()).To(BeEmpty())
}

func TestLaunchNewerIntent(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	claim := w.Planned("a", w.Class())
	w.Annotate(claim, map[string]string{v1alpha1.AnnotationLaunchIntent: `{"v":2,"region":"region-1","host":"pve1","vmid":20001}`})
	result, err := controller(w).Reconcile(t.Context(), claim)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(result.RequeueAfter).To(BeNumerically(">", 0), "it is checked again")
	w.Expect(w.IsDeleted(claim)).To(BeFalse())
	w.Expect(w.VMs()).To(BeEmpty())
	w.Expect(w.Events.Messages(v1alpha1.EventCreatedByNewerController)).To(ConsistOf(ContainSubstring("found version 2, this controller reads version 1")))
}
