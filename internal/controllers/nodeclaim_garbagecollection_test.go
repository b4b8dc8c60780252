// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/reconciler"
	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/garbagecollection"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

const (
	grace   = time.Minute
	orphans = "karpenter_proxmox_orphans"
	deleted = "karpenter_proxmox_orphans_deleted_total"
)

// collector is an Env with the controller and its metrics.
type collector struct {
	*testenv.Env
	registry   *prometheus.Registry
	controller *garbagecollection.Controller
}

// garbageCollectionSimulated runs a test with a collector that deletes orphans. It polls only when it reconciles.
func garbageCollectionSimulated(t *testing.T, setup testenv.Setup, test func(c *collector)) {
	t.Helper()
	testenv.Simulated(t, func(t *testing.T) {
		test(newCollector(t, setup...))
	})
}

// newCollector returns a collector that deletes orphans. It needs a simulation.
func newCollector(t *testing.T, options ...testenv.Option) *collector {
	t.Helper()
	c := &collector{Env: testenv.New(t, append(options, testenv.NoPolling())...)}
	c.start(func(*garbagecollection.Deps) {})
	return c
}

// start replaces the controller by one of the Process with other dependencies.
func (c *collector) start(change func(*garbagecollection.Deps)) {
	c.registry = prometheus.NewRegistry()
	deps := garbagecollection.Deps{
		Kube: c.Kube, Reader: c.Kube, VMs: c.Instances.VMs, Deleter: c.Instances.Deleter, Planner: c.Instances.Planner,
		Inventory: c.Inventory, Tokens: c.Boot.Tokens, Recorder: c.Events, Clock: c.Clock,
		Rules:        garbagecollection.Rules{Policy: garbagecollection.PolicyDelete, GracePeriod: grace, DeletionMaxFraction: 0.5},
		PollInterval: time.Second, Registerer: c.registry,
	}
	change(&deps)
	c.controller = garbagecollection.NewController(deps)
}

// run reconciles once, with a new Snapshot.
func (c *collector) run() {
	c.T.Helper()
	c.Refresh()
	c.Expect(c.controller.Reconcile(c.T.Context())).To(Equal(reconciler.Result{RequeueAfter: time.Second}))
}

// runAfterGrace reconciles now, and after a grace period.
func (c *collector) runAfterGrace() {
	c.T.Helper()
	c.run()
	c.Clock.Advance(grace + time.Second)
	c.run()
}

// runUntilEmpty reconciles until nothing is left.
func (c *collector) runUntilEmpty(left func() any) {
	c.T.Helper()
	c.Eventually(func() any { c.run(); return left() }).Should(BeEmpty())
}

func (c *collector) vms() any { return c.VMs() }

// orphan deletes a claim without its finalizer.
func (c *collector) orphan(claim *karpv1.NodeClaim) *karpv1.NodeClaim {
	c.T.Helper()
	c.Expect(c.Kube.Delete(c.T.Context(), claim)).To(Succeed())
	c.Expect(c.IsDeleted(claim)).To(BeTrue())
	return claim
}

func TestDeleteOrphanedVM(t *testing.T) {
	garbageCollectionSimulated(t, testenv.With(), func(c *collector) {
		class := c.Class()
		live, orphan := c.Launched("live", class), c.orphan(c.Launched("orphan", class))
		planned, gone := c.Planned("planned", class), c.orphan(c.Planned("gone", class))
		c.run()
		c.Expect(c.VMs()).To(HaveLen(2), "within the grace period")
		c.Expect(c.Inventory.View().Reservations).To(And(HaveKey(string(planned.UID)), HaveKey(string(gone.UID))))

		c.Clock.Advance(grace + time.Second)
		c.run()
		c.Expect(c.Events.Reasons(orphan)).To(Equal([]string{"OrphanedVMDeleted"}))
		c.Expect(c.VMs()).To(ConsistOf(HaveField("VMID", c.Intent(live).VMID)))
		c.Expect(c.Tokens()).To(ConsistOf(live.Name))
		c.Expect(c.BootDrives("pve1")).To(ConsistOf(ContainSubstring(string(live.UID))))
		c.Expect(testenv.Metric(c.T, c.registry, deleted)).To(HaveKeyWithValue("vm", 1.0))
		c.Expect(c.IsDeleted(live)).To(BeFalse())
		c.Expect(c.Inventory.View().Reservations).To(And(HaveKey(string(planned.UID)), Not(HaveKey(string(gone.UID)))))
	})
}

func TestMaxFraction(t *testing.T) {
	garbageCollectionSimulated(t, testenv.With(), func(c *collector) {
		class := c.Class()
		for _, name := range []string{"a", "b", "c", "d"} {
			c.orphan(c.Launched(name, class))
		}
		c.Launched("live", class)
		c.runAfterGrace()
		c.run()
		c.Expect(c.VMs()).To(HaveLen(5))
		c.Expect(testenv.Metric(c.T, c.registry, "karpenter_proxmox_orphan_deletions_blocked_total")).To(HaveKeyWithValue("", 2.0))
		c.Expect(testenv.Metric(c.T, c.registry, orphans)).To(HaveKeyWithValue("vm", 4.0))
		c.Expect(c.Tokens()).To(HaveLen(5), "their boot drives and tokens stay")
	})
}

func TestDeleteOrphanedBootDriveAndToken(t *testing.T) {
	garbageCollectionSimulated(t, testenv.With(), func(c *collector) {
		class := c.Class()
		live, gone := c.Launched("live", class), c.Launched("gone", class)
		c.DestroyByHand("pve1", c.Intent(gone).VMID)
		c.orphan(gone)
		c.Expect(c.BootDrives("pve1")).To(HaveLen(2))
		c.run()
		c.Expect(c.BootDrives("pve1")).To(HaveLen(2), "it is younger than the grace period")
		for range 10 * 6 { // one storage per sweep
			c.Clock.Advance(10 * time.Second)
			c.run()
		}
		c.Expect(c.BootDrives("pve1")).To(ConsistOf(ContainSubstring(string(live.UID))))
		c.Expect(c.Tokens()).To(ConsistOf(live.Name))
		c.Expect(testenv.Metric(c.T, c.registry, deleted)).To(Equal(map[string]float64{"boot-drive": 1, "join-token": 1}))
	})
}

func TestDeleteBootDriveAfterCleanup(t *testing.T) {
	garbageCollectionSimulated(t, testenv.With(), func(c *collector) {
		class := c.Class()
		joining, joined := c.Launched("joining", class), c.Launched("joined", class)
		drives := c.BootDrives("pve1")
		c.Expect(c.Instances.Deleter.CleanupBootDrive(c.Context(), joined)).To(Succeed())
		// An upload whose response was lost ends only now.
		for _, volume := range drives {
			if name := strings.TrimPrefix(volume, "local:iso/"); strings.Contains(name, string(joined.UID)) {
				c.Wait(c.Client.UploadISO(c.Context(), "pve1", "local", name, []byte("late")))
			}
		}
		c.Expect(c.BootDrives("pve1")).To(HaveLen(2))
		c.Clock.Advance(10 * time.Minute)
		c.run()
		c.Expect(c.BootDrives("pve1")).To(ConsistOf(ContainSubstring(string(joining.UID))), "boot drives of unjoined guests stay")
	})
}

// addNode creates a Node of a NodePool.
func (c *collector) addNode(name, providerID string, ready corev1.ConditionStatus) *corev1.Node {
	c.T.Helper()
	node := &corev1.Node{Spec: corev1.NodeSpec{ProviderID: providerID}}
	node.Name, node.Labels = name, map[string]string{karpv1.NodePoolLabelKey: "pool"}
	c.Create(node)
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
	c.Expect(c.Kube.Status().Update(c.Context(), node)).To(Succeed())
	return node
}

// Core provisions nothing while there is a Node that is not initialized, so an orphaned Node is not kept
// as long as a VM.
func TestDeleteOrphanedNode(t *testing.T) {
	garbageCollectionSimulated(t, testenv.With(), func(c *collector) {
		c.start(func(d *garbagecollection.Deps) { d.Rules.GracePeriod = 15 * time.Minute })
		class := c.Class()
		live := c.Launched("live", class)
		c.orphan(c.Launched("orphan", class))
		ghost := c.addNode("ghost", "proxmox://region-1/20001", corev1.ConditionUnknown)
		kept := []*corev1.Node{
			c.addNode("static", "proxmox://region-1/20003", corev1.ConditionUnknown),
			c.addNode("VM_and_claim_exist", live.Status.ProviderID, corev1.ConditionFalse),
			c.addNode("ready", "proxmox://region-1/20002", corev1.ConditionTrue),
			c.addNode("other_cloud", "aws:///eu-west-1a/i-0123", corev1.ConditionUnknown),
			c.addNode("other_region", "proxmox://region-9/20004", corev1.ConditionUnknown),
		}
		testenv.Modify(c.Env, kept[0], func(n *corev1.Node) { n.Labels = nil })
		c.run()
		c.Expect(c.IsDeleted(ghost)).To(BeFalse(), "it is younger than the grace period")
		c.runAfterGrace()
		c.Expect(c.IsDeleted(ghost)).To(BeTrue())
		for _, node := range kept {
			c.Expect(c.IsDeleted(node)).To(BeFalse(), node.Name)
		}
		c.Expect(c.VMs()).To(HaveLen(2))
		c.Clock.Advance(15 * time.Minute)
		c.run()
		c.Expect(c.VMs()).To(HaveLen(1))
	})
}

// The Nodes of a machine have the same name. One is replaced by another one right before it is deleted.
func TestKeepReplacedNode(t *testing.T) {
	garbageCollectionSimulated(t, testenv.With(), func(c *collector) {
		node := c.addNode("machine", "proxmox://region-1/20001", corev1.ConditionUnknown)
		uid := node.UID
		kube := interceptor.NewClient(c.Kube.(client.WithWatch), interceptor.Funcs{
			Delete: func(ctx context.Context, kube client.WithWatch, object client.Object, options ...client.DeleteOption) error {
				replacement := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}
				return errors.Join(kube.Delete(ctx, node), kube.Create(ctx, replacement), kube.Delete(ctx, object, options...))
			},
		})
		c.start(func(d *garbagecollection.Deps) { d.Kube = kube })
		c.runAfterGrace()
		c.Expect(testenv.Reload(c.Env, node).UID).NotTo(Equal(uid))
	})
}

// A region that was never polled does not delay the deletion of orphans of other regions.
func TestOtherRegionNotPolled(t *testing.T) {
	garbageCollectionSimulated(t, testenv.With(testenv.NeverPolled(), testenv.OtherHosts(1)), func(c *collector) {
		poll := func() { c.Expect(c.Inventory.Refresh(c.Context(), testenv.Region)).To(Succeed()) }
		poll()
		class := c.Class()
		c.orphan(c.Process.Launched("orphan", class))
		elsewhere := c.Claim("elsewhere", class)
		c.Expect(c.Boot.Tokens.Issue(c.Context(), bootdata.Claim{Name: elsewhere.Name, UID: elsewhere.UID})).Error().NotTo(HaveOccurred())
		c.orphan(elsewhere)
		c.Expect(c.Tokens()).To(HaveLen(2))
		for range 3 {
			c.Clock.Advance(10 * time.Minute)
			poll()
			c.Expect(c.controller.Reconcile(c.Context())).Error().NotTo(HaveOccurred())
		}
		c.Expect(c.VMs()).To(BeEmpty())
		c.Expect(c.BootDrives("pve1")).To(BeEmpty())
		c.Expect(c.Tokens()).To(ConsistOf(elsewhere.Name), "its VM may exist in the other region")
		c.runAfterGrace()
		c.Expect(c.Tokens()).To(BeEmpty())
	})
}

func TestFind(t *testing.T) {
	garbageCollectionSimulated(t, testenv.With(), func(c *collector) {
		class := c.Class()
		c.Launched("live", class)
		running, destroyed := c.orphan(c.Launched("running", class)), c.orphan(c.Launched("destroyed", class))
		vmid := c.Intent(running).VMID
		c.DestroyByHand("pve1", c.Intent(destroyed).VMID)
		c.Refresh()
		c.start(func(d *garbagecollection.Deps) { d.Rules = garbagecollection.Rules{} })
		found, err := c.controller.Find(c.Context())
		c.Expect(err).NotTo(HaveOccurred())
		var commands []string
		for _, orphan := range found {
			commands = append(commands, orphan.Kind+" "+orphan.Where+" "+orphan.Command)
		}
		want := []any{fmt.Sprintf("vm region-1/pve1 qm stop %d && qm destroy %d --purge", vmid, vmid)}
		for _, claim := range []*karpv1.NodeClaim{running, destroyed} {
			want = append(want, MatchRegexp("^boot-drive region-1/pve1 pvesm free local:iso/karpenter-[0-9a-f]+-%s.iso$", claim.UID),
				fmt.Sprintf("join-token kubernetes kubectl -n kube-system delete secrets -l karpenter.proxmox.sinextra.dev/nodeclaim-uid=%s", claim.UID))
		}
		c.Expect(commands).To(ConsistOf(want...), "the command that deletes the VM deletes neither its boot drive nor its token")
		c.Expect(c.VMs()).To(HaveLen(2))
		c.Expect(c.Tokens()).To(HaveLen(3))
		c.Expect(c.BootDrives("pve1")).To(HaveLen(3))
	})
}

// Uncached lists of all Claims are expensive and rarely needed.
func TestUncachedReads(t *testing.T) {
	garbageCollectionSimulated(t, testenv.With(), func(c *collector) {
		live, lists := c.Launched("live", c.Class()), 0
		uncached := interceptor.NewClient(c.Kube.(client.WithWatch), interceptor.Funcs{
			List: func(ctx context.Context, kube client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
				lists++
				return kube.List(ctx, list, options...)
			},
		})
		c.start(func(d *garbagecollection.Deps) { d.Reader, d.Tokens = uncached, nil })
		for range 3 {
			c.Clock.Advance(10 * time.Second)
			c.run()
		}
		c.Expect(lists).To(BeZero())
		c.orphan(live)
		c.run()
		c.Expect(lists).To(Equal(1), "an orphan is confirmed")
	})
}

// A VM that cannot be stopped does not block the release of reservations.
func TestOrphanThatCannotBeStopped(t *testing.T) {
	garbageCollectionSimulated(t, testenv.With(testenv.Settings(func(s *instance.Settings) { s.OperationTimeout = 200 * time.Millisecond })), func(c *collector) {
		class := c.Class()
		hanging := c.orphan(c.Launched("hanging", class))
		before := len(c.Inventory.View().Reservations)
		c.orphan(c.Planned("gone", class))
		c.AddFault(pvesim.Fault{Task: "qmstop", Hang: true})
		c.runAfterGrace() // returns although the stop hangs
		c.Expect(c.Inventory.View().Reservations).To(HaveLen(before))
		c.Expect(c.Events.Reasons(hanging)).To(BeEmpty())
	})
}
