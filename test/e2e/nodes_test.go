// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// TestNodes has what needs no world of its own. Each test has its own NodePool;
// afterwards Proxmox must be as it was before.
func TestNodes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	w.placeSnippet(t)
	before, err := w.holdings(t.Context())
	must(t, err)
	t.Run("shared", func(t *testing.T) {
		t.Run("pending pods become nodes and go again", func(t *testing.T) { t.Parallel(); w.podsBecomeNodes(t) })
		t.Run("a node without the cluster's CA does not join", func(t *testing.T) {
			t.Parallel()
			w.wrongBootData(t, "wrong-ca", ".Kubernetes.RootCA", newAuthority(t).ca, "certificate")
		})
		t.Run("a node with a wrong token does not join", func(t *testing.T) {
			t.Parallel()
			w.wrongBootData(t, "wrong-token", ".Kubernetes.BootstrapToken", "abcdef.0123456789abcdef", "nauthorized")
		})
		t.Run("pods are spread over hosts", func(t *testing.T) { t.Parallel(); w.spreadOverHosts(t) })
		t.Run("a node is where and as large as its pod requires", func(t *testing.T) { t.Parallel(); w.requirementsHold(t) })
		t.Run("a pod that fits nowhere is told why, host by host", func(t *testing.T) { t.Parallel(); w.fitsNowhere(t) })
		t.Run("a VM that was removed by hand is replaced", func(t *testing.T) { t.Parallel(); w.removedByHand(t) })
		t.Run("a VM that was stopped is started again", func(t *testing.T) { t.Parallel(); w.stoppedByHand(t) })
		t.Run("a VM boots from the cloud-init drive of Proxmox", func(t *testing.T) { t.Parallel(); w.proxmoxDrive(t) })
		t.Run("the cloud controller manager agrees", func(t *testing.T) { t.Parallel(); w.withCloudController(t) })
	})
	if t.Failed() {
		return
	}
	w.asBefore(t, before)
}

func (w *world) podsBecomeNodes(t *testing.T) {
	needs(t, guestsThatJoin())
	taint := corev1.Taint{Key: "dedicated", Value: "blue", Effect: corev1.TaintEffectNoSchedule}
	p := w.newPool(t, "blue", func(kit *harness.Kit) {
		kit.Pool.Spec.Template.Labels = map[string]string{"team": "blue"}
		kit.Pool.Spec.Template.Spec.Taints = []corev1.Taint{taint}
	})
	p.run(t, 3)
	p.podsRun(t, 3)
	claim := p.onlyClaim(t, "is settled", settled)
	node, err := p.node(t.Context(), claim)
	must(t, err)
	vms, err := p.vms(t.Context())
	must(t, err)
	if len(vms) != 1 {
		t.Fatalf("there are %d VMs, want 1", len(vms))
	}
	vm := vms[0]

	wantID := v1alpha1.ProviderID{Region: w.region, VMID: vm.VMID}.String()
	if node.Spec.ProviderID != wantID || claim.Status.ProviderID != wantID {
		t.Errorf("provider ID of the node is %q and of its claim %q, want %q", node.Spec.ProviderID, claim.Status.ProviderID, wantID)
	}
	if !strings.EqualFold(node.Status.NodeInfo.SystemUUID, string(claim.UID)) {
		t.Errorf("the node's system UUID is %s, want the claim's UID %s", node.Status.NodeInfo.SystemUUID, claim.UID)
	}
	for key, want := range map[string]string{
		"team": "blue", corev1.LabelTopologyZone: vm.Host, corev1.LabelTopologyRegion: w.region,
		karpv1.NodePoolLabelKey: p.name, corev1.LabelInstanceTypeStable: claim.Labels[corev1.LabelInstanceTypeStable],
		karpv1.CapacityTypeLabelKey: karpv1.CapacityTypeOnDemand,
	} {
		if got := node.Labels[key]; got != want || want == "" {
			t.Errorf("label %s of the node is %q, want %q", key, got, want)
		}
	}
	if !slices.ContainsFunc(node.Spec.Taints, func(have corev1.Taint) bool { return have.MatchTaint(&taint) && have.Value == taint.Value }) {
		t.Errorf("the node has taints %v, want %v among them", node.Spec.Taints, taint)
	}
	if slices.ContainsFunc(node.Spec.Taints, func(have corev1.Taint) bool { return have.Key == karpv1.UnregisteredTaintKey }) {
		t.Errorf("the node still has taint %s", karpv1.UnregisteredTaintKey)
	}
	if got, _ := vm.Config["tags"].(string); !strings.Contains(got, "karpenter") {
		t.Errorf("tags of the VM are %q, want the class's", got)
	}
	if w.proxmox != nil {
		if joined, problems, err := w.proxmox.Witness.CheckJoins(t.Context(), w.kube, []string{node.Name}); err != nil || joined != 1 {
			t.Errorf("the node did not join by its own request with its own token: %v %v", problems, err)
		}
	}
	p.bootDriveTakenBack(t, claim, vm)

	p.scaleToZero(t)
	p.nothingLeft(t, claim)
}

// bootDriveTakenBack: once the Node is initialized nothing secret is left.
func (p *pool) bootDriveTakenBack(t *testing.T, claim *karpv1.NodeClaim, vm harness.Guest) {
	t.Helper()
	p.eventually(t, "the boot drive to be taken back", func(ctx context.Context) error {
		vms, err := p.vms(ctx)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(vms, func(g harness.Guest) bool { return g.VMID == vm.VMID })
		if i < 0 {
			return fmt.Errorf("VM %d is gone", vm.VMID)
		}
		for _, key := range slices.Sorted(maps.Keys(vms[i].Config)) {
			if value, _ := vms[i].Config[key].(string); strings.Contains(value, ".iso") {
				return fmt.Errorf("drive %s still has %s", key, value)
			}
		}
		return p.noBootData(ctx, claim)
	})
}

// wrongBootData: a guest joins with what its ISO says, or not at all.
func (w *world) wrongBootData(t *testing.T, name, field, value, complaint string) {
	needs(t, simulator("it reads the console of a guest"))
	p := w.newPool(t, name, func(kit *harness.Kit) {
		right := kit.Templates.StringData["user-data"]
		wrong := strings.ReplaceAll(right, field, ".Values.wrong")
		if wrong == right {
			t.Fatalf("the example's user-data has no %s", field)
		}
		kit.Templates.StringData["user-data"] = wrong
		kit.Values.StringData["wrong"] = value
	})
	p.run(t, 1)
	claim := p.onlyClaim(t, "has a VM whose kubelet was refused", func(claim *karpv1.NodeClaim) error {
		id, err := v1alpha1.ParseProviderID(claim.Status.ProviderID)
		if err != nil {
			return err
		}
		if console := w.proxmox.Console(id.VMID); !strings.Contains(console, complaint) {
			return fmt.Errorf("the console has no %q:\n%s", complaint, console)
		}
		return nil
	})
	if _, err := p.node(t.Context(), claim); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("node %s joined with wrong boot data (%v)", claim.Name, err)
	}
	registered := claim.StatusConditions().Get(karpv1.ConditionTypeRegistered)
	if registered.IsTrue() || registered.Message == "" {
		t.Errorf("the claim's condition Registered is %s with message %q, want it to say that no node joined", registered.Status, registered.Message)
	}
	p.giveBack(t, claim)
}

func (w *world) removedByHand(t *testing.T) {
	needs(t, guestsThatJoin())
	p := w.newPool(t, "removed", nil)
	p.run(t, 1)
	p.podsRun(t, 1)
	first := p.onlyClaim(t, "is settled", settled)
	vms, err := p.vms(t.Context())
	must(t, err)
	must(t, w.api.Destroy(t.Context(), vms[0]))
	second := p.replacement(t, first)
	p.podsRun(t, 1)
	p.giveBack(t, first, second)
}

// replacement waits for another claim.
func (p *pool) replacement(t *testing.T, first *karpv1.NodeClaim) *karpv1.NodeClaim {
	t.Helper()
	p.claimGoes(t, first)
	return p.onlyClaim(t, "replaces the first", settled)
}

func (w *world) stoppedByHand(t *testing.T) {
	needs(t, guestsThatJoin())
	p := w.newPool(t, "stopped", nil)
	p.run(t, 1)
	p.podsRun(t, 1)
	claim := p.onlyClaim(t, "is settled", settled)
	was, err := p.node(t.Context(), claim)
	must(t, err)
	vms, err := p.vms(t.Context())
	must(t, err)
	must(t, w.api.Stop(t.Context(), vms[0]))
	p.bootedAgain(t, claim, was)
	p.hasEvent(t, claim.Name, "VMRestarted")
	p.giveBack(t, claim)
}

// bootedAgain: the same Node is Ready, after another boot.
func (p *pool) bootedAgain(t *testing.T, claim *karpv1.NodeClaim, was *corev1.Node) {
	t.Helper()
	p.eventually(t, "node "+was.Name+" to be Ready after another boot", func(ctx context.Context) error {
		node, err := p.node(ctx, claim)
		switch {
		case err != nil:
			return err
		case node.UID != was.UID:
			return fmt.Errorf("it is another node object")
		case node.Status.NodeInfo.BootID == was.Status.NodeInfo.BootID:
			return fmt.Errorf("its boot ID is still %s", was.Status.NodeInfo.BootID)
		case !harness.NodeReady(node):
			return fmt.Errorf("it is not Ready")
		}
		return nil
	})
}

// hasEvent waits for an event about an object and gives its message.
func (w *world) hasEvent(t *testing.T, object, reason string) (message string) {
	t.Helper()
	w.eventually(t, "event "+reason+" of "+object, func(ctx context.Context) error {
		events := &corev1.EventList{}
		if err := w.kube.List(ctx, events); err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.InvolvedObject.Name == object && e.Reason == reason {
				message = e.Message
				return nil
			}
		}
		return fmt.Errorf("there is none among %d", len(events.Items))
	})
	return message
}
