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
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// TestNodes contains tests that share an environment. Each has its own NodePool. Afterwards
// Proxmox must be as before.
func TestNodes(t *testing.T) {
	t.Parallel()
	e := newEnv(t, setup{})
	e.placeSnippet(t)
	before, err := e.holdings(t.Context())
	must(t, err)
	runShared(t, map[string]func(*testing.T){
		"scale_up_and_down": e.scaleUpAndDown,
		"wrong_CA": func(t *testing.T) {
			e.wrongBootData(t, "wrong-ca", ".Kubernetes.RootCA", newAuthority(t).ca, "certificate")
		},
		"wrong_token": func(t *testing.T) {
			e.wrongBootData(t, "wrong-token", ".Kubernetes.BootstrapToken", "abcdef.0123456789abcdef", "nauthorized")
		},
		"spread_over_hosts":  e.spreadOverHosts,
		"pod_requirements":   e.podRequirements,
		"no_host_fits":       e.noHostFits,
		"VM_deleted_by_hand": e.deletedByHand,
		"VM_stopped_by_hand": e.stoppedByHand,
		"proxmox_cloud_init": e.proxmoxDrive,
	})
	if t.Failed() {
		return
	}
	e.expectUnchanged(t, before)
}

func (e *env) scaleUpAndDown(t *testing.T) {
	needs(t, guestsThatJoin())
	taint := corev1.Taint{Key: "dedicated", Value: "blue", Effect: corev1.TaintEffectNoSchedule}
	p := e.newNodePool(t, "blue", func(kit *harness.Kit) {
		kit.Pool.Spec.Template.Labels = map[string]string{"team": "blue"}
		kit.Pool.Spec.Template.Spec.Taints = []corev1.Taint{taint}
		kit.Pool.Spec.Limits = karpv1.Limits{corev1.ResourceCPU: resource.MustParse("0")}
	})
	p.deployPods(t, 3)
	// If Karpenter does not see all pods at once, it creates more than one NodeClaim.
	p.eventually(t, "3 pods of "+p.name, func(ctx context.Context) error {
		pods, err := harness.Pods(ctx, p.kube, p.name)
		if err == nil && len(pods) != 3 {
			err = fmt.Errorf("there are %d", len(pods))
		}
		return err
	})
	limited := p.kit.Pool.DeepCopy()
	p.kit.Pool.Spec.Limits = nil
	must(t, e.kube.Patch(t.Context(), p.kit.Pool, client.MergeFrom(limited)))
	p.waitForPods(t, 3)
	claim := p.waitForClaim(t, "is settled", settled)
	node, err := p.node(t.Context(), claim)
	must(t, err)
	vms, err := p.vms(t.Context())
	must(t, err)
	if len(vms) != 1 {
		t.Fatalf("there are %d VMs, want 1", len(vms))
	}
	vm := vms[0]

	wantID := v1alpha1.ProviderID{Region: e.region, VMID: vm.VMID}.String()
	if node.Spec.ProviderID != wantID || claim.Status.ProviderID != wantID {
		t.Errorf("provider ID of the node is %q and of its claim %q, want %q", node.Spec.ProviderID, claim.Status.ProviderID, wantID)
	}
	if !strings.EqualFold(node.Status.NodeInfo.SystemUUID, string(claim.UID)) {
		t.Errorf("the node's system UUID is %s, want the claim's UID %s", node.Status.NodeInfo.SystemUUID, claim.UID)
	}
	for key, want := range map[string]string{
		"team": "blue", corev1.LabelTopologyZone: vm.Host, corev1.LabelTopologyRegion: e.region,
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
	if e.proxmox != nil {
		if joined, problems, err := e.proxmox.BootRecorder.CheckJoins(t.Context(), e.kube, []string{node.Name}); err != nil || joined != 1 {
			t.Errorf("the node did not join with its own token: %v %v", problems, err)
		}
	}
	p.waitForBootDriveCleanup(t, claim, vm)

	p.scaleToZero(t)
	p.waitUntilGone(t, claim)
}

// waitForBootDriveCleanup waits until an initialized Node's VM has no boot drive and no boot
// data exists.
func (p *nodePool) waitForBootDriveCleanup(t *testing.T, claim *karpv1.NodeClaim, vm harness.Guest) {
	t.Helper()
	p.eventually(t, "the boot drive to be deleted", func(ctx context.Context) error {
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

// wrongBootData checks that a guest with wrong boot data does not join.
func (e *env) wrongBootData(t *testing.T, name, field, value, complaint string) {
	needs(t, simulator("it reads guest consoles"))
	p := e.newNodePool(t, name, func(kit *harness.Kit) {
		right := kit.Templates.StringData["user-data"]
		wrong := strings.ReplaceAll(right, field, ".Values.wrong")
		if wrong == right {
			t.Fatalf("the example's user-data has no %s", field)
		}
		kit.Templates.StringData["user-data"] = wrong
		kit.Values.StringData["wrong"] = value
	})
	p.deployPods(t, 1)
	claim := p.waitForClaim(t, "has a VM whose kubelet was refused", func(claim *karpv1.NodeClaim) error {
		id, err := v1alpha1.ParseProviderID(claim.Status.ProviderID)
		if err != nil {
			return err
		}
		if console := e.proxmox.Console(id.VMID); !strings.Contains(console, complaint) {
			return fmt.Errorf("the console has no %q:\n%s", complaint, console)
		}
		return nil
	})
	if _, err := p.node(t.Context(), claim); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("node %s joined with wrong boot data (%v)", claim.Name, err)
	}
	registered := claim.StatusConditions().Get(karpv1.ConditionTypeRegistered)
	if registered.IsTrue() || registered.Message == "" {
		t.Errorf("the claim's condition Registered is %s with message %q, want one about the missing node", registered.Status, registered.Message)
	}
	p.deleteClaims(t, claim)
}

func (e *env) deletedByHand(t *testing.T) {
	needs(t, guestsThatJoin())
	p := e.newNodePool(t, "removed", nil)
	p.deployPods(t, 1)
	p.waitForPods(t, 1)
	first := p.waitForClaim(t, "is settled", settled)
	vms, err := p.vms(t.Context())
	must(t, err)
	must(t, e.api.Destroy(t.Context(), vms[0]))
	second := p.waitForReplacement(t, first)
	p.waitForPods(t, 1)
	p.deleteClaims(t, first, second)
}

// waitForReplacement waits until the first NodeClaim is deleted and returns its replacement.
func (p *nodePool) waitForReplacement(t *testing.T, first *karpv1.NodeClaim) *karpv1.NodeClaim {
	t.Helper()
	p.waitForDeletion(t, first)
	return p.waitForClaim(t, "replaces the first", settled)
}

func (e *env) stoppedByHand(t *testing.T) {
	needs(t, guestsThatJoin())
	p := e.newNodePool(t, "stopped", nil)
	p.deployPods(t, 1)
	p.waitForPods(t, 1)
	claim := p.waitForClaim(t, "is settled", settled)
	was, err := p.node(t.Context(), claim)
	must(t, err)
	vms, err := p.vms(t.Context())
	must(t, err)
	must(t, e.api.Stop(t.Context(), vms[0]))
	p.waitForReboot(t, claim, was)
	p.waitForEvent(t, claim.Name, "VMRestarted")
	p.deleteClaims(t, claim)
}

// waitForReboot waits until the same Node is ready after another boot.
func (p *nodePool) waitForReboot(t *testing.T, claim *karpv1.NodeClaim, was *corev1.Node) {
	t.Helper()
	p.eventually(t, "node "+was.Name+" to be Ready after another boot", func(ctx context.Context) error {
		node, err := p.node(ctx, claim)
		switch {
		case err != nil:
			return err
		case node.UID != was.UID:
			return fmt.Errorf("the Node was recreated")
		case node.Status.NodeInfo.BootID == was.Status.NodeInfo.BootID:
			return fmt.Errorf("its boot ID is still %s", was.Status.NodeInfo.BootID)
		case !harness.NodeReady(node):
			return fmt.Errorf("it is not Ready")
		}
		return nil
	})
}

// waitForEvent waits for an event about an object and returns its message.
func (e *env) waitForEvent(t *testing.T, object, reason string) (message string) {
	t.Helper()
	e.eventually(t, "event "+reason+" of "+object, func(ctx context.Context) error {
		events := &corev1.EventList{}
		if err := e.kube.List(ctx, events); err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.InvolvedObject.Name == object && e.Reason == reason {
				message = e.Message
				return nil
			}
		}
		return fmt.Errorf("not found among %d events", len(events.Items))
	})
	return message
}
