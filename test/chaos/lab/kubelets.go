// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// kubeletRetry is the interval at which a kubelet retries.
const kubeletRetry = 100 * time.Millisecond

// kubelets are guests that register Nodes and report their status. When a guest ends, its Node
// becomes unknown at once. They also set the taints of a node lifecycle controller.
type kubelets struct {
	kube client.Client
}

// Boot runs the guest of a VM.
func (k *kubelets) Boot(ctx context.Context, m *pvesim.Machine) {
	if m.VMID < testenv.FirstVMID {
		pvesim.CooperativeGuests{}.Boot(ctx, m)
		return
	}
	defer k.lose(m)
	registered := false
	for {
		health, changed := m.Health()
		shutdown := m.ShutdownRequested()
		ready := corev1.ConditionTrue
		switch health {
		case pvesim.HealthSick:
			ready = corev1.ConditionFalse
		case pvesim.HealthHung:
			ready, shutdown = corev1.ConditionUnknown, nil
		}
		retry := time.NewTimer(kubeletRetry)
		if k.report(ctx, m, ready, !registered) == nil {
			registered = true
			retry.Stop()
		}
		select {
		case <-ctx.Done():
			return
		case <-shutdown:
			return
		case <-changed:
		case <-retry.C:
		}
	}
}

// lose marks the Node of a guest that ended as unknown.
func (k *kubelets) lose(m *pvesim.Machine) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for ctx.Err() == nil {
		if err := k.report(ctx, m, corev1.ConditionUnknown, false); err == nil || apierrors.IsNotFound(err) || errors.Is(err, errNoClaim) {
			return
		}
		time.Sleep(kubeletRetry)
	}
}

var errNoClaim = errors.New("the VM has no NodeClaim with a providerID")

// report writes the status of a Node. A kubelet creates its Node only when it starts.
func (k *kubelets) report(ctx context.Context, m *pvesim.Machine, ready corev1.ConditionStatus, register bool) error {
	claim, err := k.claimOf(ctx, m)
	if err != nil {
		return err
	}
	node := &corev1.Node{}
	err = k.kube.Get(ctx, client.ObjectKey{Name: m.Name}, node)
	if apierrors.IsNotFound(err) && register {
		node = &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: m.Name, Labels: map[string]string{corev1.LabelHostname: m.Name}},
			Spec:       corev1.NodeSpec{ProviderID: claim.Status.ProviderID, Taints: []corev1.Taint{karpv1.UnregisteredNoExecuteTaint}},
		}
		err = k.kube.Create(ctx, node)
	}
	if err != nil {
		return err
	}
	now := metav1.Now()
	node.Status.NodeInfo.SystemUUID, node.Status.NodeInfo.BootID = m.UUID, m.BootID
	node.Status.Capacity, node.Status.Allocatable = claim.Status.Capacity, claim.Status.Allocatable
	node.Status.Conditions = []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: ready, Reason: "Kubelet" + string(ready), LastHeartbeatTime: now, LastTransitionTime: now,
	}}
	if err := k.kube.Status().Update(ctx, node); err != nil {
		return err
	}
	taints := taintsFor(node.Spec.Taints, ready)
	if equality.Semantic.DeepEqual(taints, node.Spec.Taints) {
		return nil
	}
	node.Spec.Taints = taints
	return k.kube.Update(ctx, node)
}

// taintsFor returns a Node's taints as the node lifecycle controller sets them by its condition
// Ready. Without them, core expects pods to run on a Node that is not ready.
func taintsFor(taints []corev1.Taint, ready corev1.ConditionStatus) []corev1.Taint {
	keys := map[corev1.ConditionStatus]string{corev1.ConditionFalse: corev1.TaintNodeNotReady, corev1.ConditionUnknown: corev1.TaintNodeUnreachable}
	out := slices.DeleteFunc(slices.Clone(taints), func(t corev1.Taint) bool {
		return t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable
	})
	if key := keys[ready]; key != "" {
		out = append(out, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
	}
	return out
}

// claimOf returns the NodeClaim of a VM when core has recorded its VM.
func (k *kubelets) claimOf(ctx context.Context, m *pvesim.Machine) (*karpv1.NodeClaim, error) {
	claims := &karpv1.NodeClaimList{}
	if err := k.kube.List(ctx, claims); err != nil {
		return nil, err
	}
	for _, claim := range claims.Items {
		if strings.EqualFold(string(claim.UID), m.UUID) && claim.Status.ProviderID != "" {
			return &claim, nil
		}
	}
	return nil, errNoClaim
}
