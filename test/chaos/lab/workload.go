// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// podCPU is what a pod requests: one fits on a Node.
const podCPU = "1200m"

// Workload keeps a number of pods running. It does what is missing without a control plane: it
// creates pods, schedules them, and removes pods of lost Nodes.
type Workload struct {
	env      *Env
	replicas atomic.Int64
}

// StartWorkload starts a Workload without pods. It ends with the test.
func (e *Env) StartWorkload() *Workload {
	e.t.Helper()
	w := &Workload{env: e}
	testenv.Go(e.t, func(ctx context.Context) error {
		for ctx.Err() == nil {
			_ = w.sync(ctx) // retried
			time.Sleep(200 * time.Millisecond)
		}
		return nil
	})
	return w
}

// Scale sets the number of pods.
func (w *Workload) Scale(replicas int) { w.replicas.Store(int64(replicas)) }

// list returns the pods, and all Nodes.
func (w *Workload) list(ctx context.Context) ([]corev1.Pod, []corev1.Node, error) {
	pods, nodes := &corev1.PodList{}, &corev1.NodeList{}
	err := errors.Join(w.env.Kube.List(ctx, nodes), w.env.Kube.List(ctx, pods, client.InNamespace(metav1.NamespaceDefault)))
	return pods.Items, nodes.Items, err
}

func (w *Workload) sync(ctx context.Context) error {
	pods, nodes, err := w.list(ctx)
	if err != nil {
		return err
	}
	free := map[string]bool{} // Nodes that can run another pod
	status := map[string]corev1.ConditionStatus{}
	for _, node := range nodes {
		status[node.Name] = readiness(&node)
		free[node.Name] = status[node.Name] == corev1.ConditionTrue && !node.Spec.Unschedulable && len(node.Spec.Taints) == 0
	}
	for _, pod := range pods {
		delete(free, pod.Spec.NodeName)
	}
	active := 0
	for i := range pods {
		pod, on, deleting := &pods[i], pods[i].Spec.NodeName, pods[i].DeletionTimestamp != nil
		// A kubelet that is not ready still ends pods.
		gone := on != "" && (status[on] == "" || (deleting && status[on] != corev1.ConditionUnknown))
		switch {
		case gone, on == "" && deleting, active >= int(w.replicas.Load()):
			_ = w.env.Kube.Delete(ctx, pod, client.GracePeriodSeconds(0)) // retried
		case !deleting:
			active++
			if on == "" {
				err = errors.Join(err, w.schedule(ctx, pod, free))
			}
		}
	}
	for ; active < int(w.replicas.Load()); active++ {
		err = errors.Join(err, w.create(ctx))
	}
	return err
}

// readiness returns the status of a Node's condition Ready.
func readiness(node *corev1.Node) corev1.ConditionStatus {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status
		}
	}
	return corev1.ConditionUnknown
}

// schedule binds a pod to a free Node, or marks it as unschedulable.
func (w *Workload) schedule(ctx context.Context, pod *corev1.Pod, free map[string]bool) error {
	for node, ok := range free {
		if !ok {
			continue
		}
		delete(free, node)
		binding := &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: node}}
		return w.env.Kube.SubResource("binding").Create(ctx, pod, binding)
	}
	if len(pod.Status.Conditions) > 0 {
		return nil
	}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
	return w.env.Kube.Status().Update(ctx, pod)
}

func (w *Workload) create(ctx context.Context) error {
	return w.env.Kube.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, GenerateName: "pod-"},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: new(int64(1)),
			Containers: []corev1.Container{{Name: "app", Image: "app", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(podCPU)},
			}}},
		},
	})
}

// violations returns pods that do not run on a ready Node.
func (w *Workload) violations(ctx context.Context) (violations []string) {
	pods, nodes, err := w.list(ctx)
	if err != nil {
		return []string{err.Error()}
	}
	ready := map[string]bool{}
	for _, node := range nodes {
		ready[node.Name] = readiness(&node) == corev1.ConditionTrue
	}
	for _, pod := range pods {
		if !ready[pod.Spec.NodeName] || pod.DeletionTimestamp != nil {
			violations = append(violations, fmt.Sprintf("pod %s does not run, its node is %q", pod.Name, pod.Spec.NodeName))
		}
	}
	if len(violations) > 0 {
		for _, node := range nodes {
			if !ready[node.Name] || node.Spec.Unschedulable || len(node.Spec.Taints) > 0 {
				violations = append(violations, fmt.Sprintf("node %s accepts no pods: ready %s, taints %v", node.Name, readiness(&node), node.Spec.Taints))
			}
		}
	}
	if len(pods) != int(w.replicas.Load()) {
		violations = append(violations, fmt.Sprintf("there are %d pods, want %d", len(pods), w.replicas.Load()))
	}
	return violations
}

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
