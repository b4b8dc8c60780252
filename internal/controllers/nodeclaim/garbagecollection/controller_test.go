// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package garbagecollection_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/garbagecollection"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

const grace = time.Minute

// collector is the controller with its metrics.
type collector struct {
	*testenv.Env
	*garbagecollection.Controller
	registry *prometheus.Registry
}

func newCollector(w *testenv.Env, policy garbagecollection.Policy, changes ...func(*garbagecollection.Deps)) *collector {
	registry, rules := prometheus.NewRegistry(), garbagecollection.Rules{DeletionMaxFraction: 0.5}
	rules.Policy, rules.GracePeriod = policy, grace
	deps := garbagecollection.Deps{
		Kube: w.Kube, Reader: w.Kube, VMs: w.Instances.VMs, Deleter: w.Instances.Deleter, Planner: w.Instances.Planner,
		Inventory: w.Inventory, Tokens: w.Boot.Tokens, Recorder: w.Events, Clock: w.Clock,
		Rules: rules, PollInterval: time.Second, Registerer: registry,
	}
	for _, change := range changes {
		change(&deps)
	}
	return &collector{Env: w, registry: registry, Controller: garbagecollection.NewController(deps)}
}

// run reconciles once, with a new Snapshot.
func (c *collector) run() {
	c.T.Helper()
	c.Env.Refresh()
	result, err := c.Reconcile(c.T.Context())
	c.Expect(err).NotTo(HaveOccurred())
	c.Expect(result.RequeueAfter).To(BeNumerically(">", 0))
}

// count returns the value of a metric; kind may be empty.
func (c *collector) count(name, kind string) float64 {
	c.T.Helper()
	families, err := c.registry.Gather()
	c.Expect(err).NotTo(HaveOccurred())
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, metric := range family.GetMetric() {
			if kind == "" || metric.GetLabel()[0].GetValue() == kind {
				return metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
			}
		}
	}
	return 0
}

// orphaned deletes a claim without its finalizer.
func orphaned(w *testenv.Env, claim *karpv1.NodeClaim) *karpv1.NodeClaim {
	w.T.Helper()
	w.Expect(w.Kube.Delete(w.T.Context(), claim)).To(Succeed())
	w.Expect(w.IsDeleted(claim)).To(BeTrue())
	return claim
}

func TestDeleteOrphanedVM(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	class := w.Class()
	live, orphan := w.Launched("live", class), orphaned(w, w.Launched("orphan", class))
	c := newCollector(w, garbagecollection.PolicyDelete)
	c.run()
	w.Expect(w.VMs()).To(HaveLen(2), "within the grace period")

	w.Clock.Advance(grace + time.Second)
	w.Eventually(func() []string { c.run(); return w.Events.Reasons(orphan) }).Should(Equal([]string{"OrphanedVMDeleted"}))
	w.Expect(w.VMs()).To(ConsistOf(HaveField("VMID", w.Intent(live).VMID)))
	w.Expect(w.Tokens()).To(ConsistOf(live.Name))
	w.Expect(w.BootDrives("pve1")).To(ConsistOf(ContainSubstring(string(live.UID))))
	w.Expect(c.count("karpenter_proxmox_orphans_deleted_total", "vm")).To(BeEquivalentTo(1))
	w.Expect(w.IsDeleted(live)).To(BeFalse())
}

func TestMaxFraction(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	class := w.Class()
	for _, name := range []string{"a", "b", "c", "d"} {
		orphaned(w, w.Launched(name, class))
	}
	w.Launched("live", class)
	c := newCollector(w, garbagecollection.PolicyDelete)
	c.run()
	w.Clock.Advance(grace + time.Second)
	c.run()
	c.run()
	w.Expect(w.VMs()).To(HaveLen(5))
	w.Expect(c.count("karpenter_proxmox_orphan_deletions_blocked_total", "")).To(BeNumerically(">=", 1))
	w.Expect(c.count("karpenter_proxmox_orphans", "vm")).To(BeEquivalentTo(4))
	w.Expect(w.Tokens()).To(HaveLen(5), "their boot drives and tokens stay")
}

func TestOtherKubernetesCluster(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	class := w.Class()
	orphaned(w, w.StartProcess(testenv.KubeCluster("another")).Launched("theirs", class))
	c := newCollector(w, garbagecollection.PolicyDelete)
	c.run()
	w.Clock.Advance(10 * time.Minute)
	c.run()
	w.Clock.Advance(10 * time.Minute)
	c.run()
	w.Expect(w.VMs()).To(HaveLen(1))
	w.Expect(w.BootDrives("pve1")).To(HaveLen(1))
	w.Expect(c.count("karpenter_proxmox_orphans", "vm")).To(BeZero())
}

func TestDeleteOrphanedBootDriveAndToken(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	class := w.Class()
	live, gone := w.Launched("live", class), w.Launched("gone", class)
	w.DestroyByHand("pve1", w.Intent(gone).VMID)
	orphaned(w, gone)
	w.Expect(w.BootDrives("pve1")).To(HaveLen(2))
	c := newCollector(w, garbagecollection.PolicyDelete)
	c.run()
	w.Expect(w.BootDrives("pve1")).To(HaveLen(2), "it is younger than the grace period")
	for range 10 * 6 { // one storage per sweep
		w.Clock.Advance(10 * time.Second)
		c.run()
	}
	w.Expect(w.BootDrives("pve1")).To(ConsistOf(ContainSubstring(string(live.UID))))
	w.Expect(w.Tokens()).To(ConsistOf(live.Name))
	w.Expect(c.count("karpenter_proxmox_orphans_deleted_total", "boot-drive")).To(BeEquivalentTo(1))
	w.Expect(c.count("karpenter_proxmox_orphans_deleted_total", "join-token")).To(BeEquivalentTo(1))
}

func TestDeleteBootDriveAfterCleanup(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	class := w.Class()
	joining, joined := w.Launched("joining", class), w.Launched("joined", class)
	drives := w.BootDrives("pve1")
	w.Expect(w.Instances.Deleter.CleanupBootDrive(t.Context(), joined)).To(Succeed())
	// An upload whose response was lost ends only now.
	for _, volume := range drives {
		if name := strings.TrimPrefix(volume, "local:iso/"); strings.Contains(name, string(joined.UID)) {
			task, err := w.Client.UploadISO(t.Context(), "pve1", "local", name, []byte("late"))
			w.Expect(err).NotTo(HaveOccurred())
			_, err = proxmox.WaitTask(t.Context(), w.Client, task, proxmox.WaitOptions{Clock: w.Clock})
			w.Expect(err).NotTo(HaveOccurred())
		}
	}
	w.Expect(w.BootDrives("pve1")).To(HaveLen(2))
	w.Clock.Advance(10 * time.Minute)
	newCollector(w, garbagecollection.PolicyDelete).run()
	w.Expect(w.BootDrives("pve1")).To(ConsistOf(ContainSubstring(string(joining.UID))), "boot drives of unjoined guests stay")
}

func TestReleaseReservation(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	class := w.Class()
	free := func() int { host, _ := w.Inventory.View().Host(testenv.Region, "pve1"); return host.Free.CPUs }
	before := free()
	live, gone := w.Planned("live", class), w.Planned("gone", class)
	orphaned(w, gone)
	c := newCollector(w, garbagecollection.PolicyDelete)
	c.run()
	w.Expect(free()).To(Equal(before - 4))
	w.Clock.Advance(grace + time.Second)
	c.run()
	w.Expect(free()).To(Equal(before-2), "only %s has a reservation", live.Name)
}

func TestDeleteOrphanedNode(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	class := w.Class()
	live := w.Launched("live", class)
	node := func(name, providerID string, ready corev1.ConditionStatus, labels map[string]string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.Named(name), Labels: labels}, Spec: corev1.NodeSpec{ProviderID: providerID}}
		w.Create(n)
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
		w.Expect(w.Kube.Status().Update(t.Context(), n)).To(Succeed())
		return n
	}
	pool := func() map[string]string { return map[string]string{karpv1.NodePoolLabelKey: "pool"} }
	ghost := node("ghost", "proxmox://region-1/20001", corev1.ConditionUnknown, pool())
	kept := map[string]*corev1.Node{
		"VM and claim exist": node("live", live.Status.ProviderID, corev1.ConditionFalse, pool()),
		"ready":              node("ready", "proxmox://region-1/20002", corev1.ConditionTrue, pool()),
		"no NodePool":        node("static", "proxmox://region-1/20003", corev1.ConditionUnknown, nil),
		"other cloud":        node("aws", "aws:///eu-west-1a/i-0123", corev1.ConditionUnknown, pool()),
		"other region":       node("region", "proxmox://region-9/20004", corev1.ConditionUnknown, pool()),
	}
	c := newCollector(w, garbagecollection.PolicyDelete)
	c.run()
	w.Expect(w.IsDeleted(ghost)).To(BeFalse(), "it is younger than the grace period")
	w.Clock.Advance(2 * time.Minute)
	c.run()
	w.Expect(w.IsDeleted(ghost)).To(BeTrue())
	for why, n := range kept {
		w.Expect(w.IsDeleted(n)).To(BeFalse(), why)
	}
}

// replacedNode is a client of which a Node is replaced by another one of its name right before it
// is deleted.
type replacedNode struct {
	client.Client
	node *corev1.Node
}

func (c replacedNode) Delete(ctx context.Context, object client.Object, options ...client.DeleteOption) error {
	if object.GetName() == c.node.Name {
		replacement := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: c.node.Name}}
		if err := errors.Join(c.Client.Delete(ctx, c.node), c.Create(ctx, replacement)); err != nil {
			return err
		}
	}
	return c.Client.Delete(ctx, object, options...)
}

// The Nodes of a machine have the same name.
func TestKeepReplacedNode(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	w.Class()
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: w.Named("machine"), Labels: map[string]string{karpv1.NodePoolLabelKey: "pool"}},
		Spec:       corev1.NodeSpec{ProviderID: "proxmox://region-1/20001"},
	}
	w.Create(node)
	c := newCollector(w, garbagecollection.PolicyDelete, func(d *garbagecollection.Deps) { d.Kube = replacedNode{d.Kube, node.DeepCopy()} })
	c.run()
	w.Clock.Advance(2 * time.Minute)
	c.run()
	found := &corev1.Node{}
	w.Expect(w.Kube.Get(t.Context(), client.ObjectKeyFromObject(node), found)).To(Succeed())
	w.Expect(found.UID).NotTo(Equal(node.UID))
	w.Expect(w.Kube.Delete(t.Context(), found)).To(Succeed())
}

// A region that was never polled does not delay the deletion of orphans of other regions.
func TestOtherRegionNotPolled(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NeverPolled(), testenv.OtherHosts(1))
	poll := func() { w.Expect(w.Inventory.Refresh(t.Context(), testenv.Region)).To(Succeed()) }
	poll()
	class := w.Class()
	orphaned(w, w.Process.Launched("orphan", class))
	elsewhere := w.Claim("elsewhere", class)
	_, err := w.Boot.Tokens.Issue(t.Context(), bootdata.Claim{Name: elsewhere.Name, UID: elsewhere.UID})
	w.Expect(err).NotTo(HaveOccurred())
	orphaned(w, elsewhere)
	w.Expect(w.Tokens()).To(HaveLen(2))
	c := newCollector(w, garbagecollection.PolicyDelete)
	w.Eventually(func() int {
		poll()
		_, err := c.Reconcile(t.Context())
		w.Expect(err).NotTo(HaveOccurred())
		w.Clock.Advance(10 * time.Minute)
		return len(w.VMs())
	}).Should(BeZero())
	w.Expect(w.BootDrives("pve1")).To(BeEmpty())
	w.Expect(w.Tokens()).To(ConsistOf(elsewhere.Name), "its VM may exist in the other region")

	w.Refresh()
	w.Clock.Advance(10 * time.Minute)
	c.run()
	w.Expect(w.Tokens()).To(BeEmpty())
}

func TestFind(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	class := w.Class()
	w.Launched("live", class)
	running, destroyed := orphaned(w, w.Launched("running", class)), orphaned(w, w.Launched("destroyed", class))
	vmid := w.Intent(running).VMID
	w.DestroyByHand("pve1", w.Intent(destroyed).VMID)
	w.Refresh()
	c := garbagecollection.NewController(garbagecollection.Deps{
		Kube: w.Kube, Reader: w.Kube, VMs: w.Instances.VMs, Deleter: w.Instances.Deleter, Inventory: w.Inventory, Tokens: w.Boot.Tokens, Clock: w.Clock,
	})
	orphans, err := c.Find(t.Context())
	w.Expect(err).NotTo(HaveOccurred())
	var commands []string
	for _, orphan := range orphans {
		if strings.Contains(orphan.Name, w.Name) || strings.Contains(orphan.Command, string(destroyed.UID)) || strings.Contains(orphan.Command, string(running.UID)) {
			commands = append(commands, orphan.Kind+" "+orphan.Where+" "+orphan.Command)
		}
	}
	w.Expect(commands).To(ConsistOf(
		fmt.Sprintf("vm region-1/pve1 qm stop %d && qm destroy %d --purge", vmid, vmid),
		MatchRegexp("^boot-drive region-1/pve1 pvesm free local:iso/karpenter-[0-9a-f]+-%s.iso$", running.UID),
		fmt.Sprintf("join-token kubernetes kubectl -n kube-system delete secrets -l karpenter.proxmox.sinextra.dev/nodeclaim-uid=%s", running.UID),
		MatchRegexp("^boot-drive region-1/pve1 pvesm free local:iso/karpenter-[0-9a-f]+-%s.iso$", destroyed.UID),
		fmt.Sprintf("join-token kubernetes kubectl -n kube-system delete secrets -l karpenter.proxmox.sinextra.dev/nodeclaim-uid=%s", destroyed.UID),
	), "the command that deletes the VM deletes neither its boot drive nor its token")
	w.Expect(w.VMs()).To(HaveLen(2))
	w.Expect(w.Tokens()).To(HaveLen(3))
	w.Expect(w.BootDrives("pve1")).To(HaveLen(3))
}

// Uncached lists of all Claims are expensive and rarely needed.
func TestUncachedReads(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	live := w.Launched("live", w.Class())
	uncached := &counting{Reader: w.Kube}
	c := newCollector(w, garbagecollection.PolicyDelete, func(d *garbagecollection.Deps) { d.Reader, d.Tokens = uncached, nil })
	before := uncached.lists
	for range 3 {
		w.Clock.Advance(10 * time.Second)
		c.run()
	}
	w.Expect(uncached.lists).To(Equal(before))
	orphaned(w, live)
	w.Clock.Advance(10 * time.Second)
	c.run()
	w.Expect(uncached.lists).To(BeNumerically(">", before), "an orphan is confirmed")
}

type counting struct {
	client.Reader
	lists int
}

func (c *counting) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	c.lists++
	return c.Reader.List(ctx, list, opts...)
}

// A VM that cannot be stopped does not block the release of reservations.
func TestOrphanThatCannotBeStopped(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.Settings(func(s *instance.Settings) { s.OperationTimeout = 200 * time.Millisecond }))
	class := w.Class()
	hanging := orphaned(w, w.Launched("hanging", class))
	before := len(w.Inventory.View().Reservations)
	orphaned(w, w.Planned("gone", class))
	_, err := w.Sim.AddFault(pvesim.Fault{Task: "qmstop", Hang: true})
	w.Expect(err).NotTo(HaveOccurred())
	c := newCollector(w, garbagecollection.PolicyDelete)
	c.run()
	w.Clock.Advance(grace + time.Second)
	c.run() // returns although the stop hangs
	w.Expect(w.Inventory.View().Reservations).To(HaveLen(before))
	w.Expect(w.Events.Reasons(hanging)).To(BeEmpty())
}
