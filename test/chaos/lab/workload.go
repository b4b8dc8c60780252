// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
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

func (w *Workload) sync(ctx context.Context) error {
	pods, nodes := &corev1.PodList{}, &corev1.NodeList{}
	if err := w.env.Kube.List(ctx, nodes); err != nil {
		return err
	}
	if err := w.env.Kube.List(ctx, pods, client.InNamespace(metav1.NamespaceDefault)); err != nil {
		return err
	}
	free := map[string]bool{} // Nodes that can run another pod
	known, alive := map[string]bool{}, map[string]bool{}
	for _, node := range nodes.Items {
		status := readiness(&node)
		// A kubelet that is not ready still ends pods.
		known[node.Name], alive[node.Name] = true, status != corev1.ConditionUnknown
		free[node.Name] = status == corev1.ConditionTrue && !node.Spec.Unschedulable && len(node.Spec.Taints) == 0
	}
	active := 0
	for _, pod := range pods.Items {
		on := pod.Spec.NodeName
		delete(free, on)
		gone := on != "" && (!known[on] || (alive[on] && pod.DeletionTimestamp != nil))
		switch {
		case gone, on == "" && pod.DeletionTimestamp != nil, active >= int(w.replicas.Load()):
			_ = w.env.Kube.Delete(ctx, &pod, client.GracePeriodSeconds(0)) // retried
		case pod.DeletionTimestamp == nil:
			active++
		}
	}
	if err := w.scheduleAll(ctx, pods.Items, free); err != nil {
		return err
	}
	return w.createMissing(ctx, active)
}

func (w *Workload) createMissing(ctx context.Context, active int) error {
	for ; active < int(w.replicas.Load()); active++ {
		if err := w.create(ctx); err != nil {
			return err
		}
	}
	return nil
}

// scheduleAll schedules the pods that have no Node.
func (w *Workload) scheduleAll(ctx context.Context, pods []corev1.Pod, free map[string]bool) error {
	for i := range pods {
		if pods[i].Spec.NodeName != "" || pods[i].DeletionTimestamp != nil {
			continue
		}
		if err := w.schedule(ctx, &pods[i], free); err != nil {
			return err
		}
	}
	return nil
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
	pods, nodes := &corev1.PodList{}, &corev1.NodeList{}
	if err := w.env.Kube.List(ctx, nodes); err != nil {
		return []string{err.Error()}
	}
	if err := w.env.Kube.List(ctx, pods, client.InNamespace(metav1.NamespaceDefault)); err != nil {
		return []string{err.Error()}
	}
	ready := map[string]bool{}
	for _, node := range nodes.Items {
		ready[node.Name] = readiness(&node) == corev1.ConditionTrue
	}
	for _, pod := range pods.Items {
		if !ready[pod.Spec.NodeName] || pod.DeletionTimestamp != nil {
			violations = append(violations, fmt.Sprintf("pod %s does not run, its node is %q", pod.Name, pod.Spec.NodeName))
		}
	}
	if len(violations) > 0 {
		for _, node := range nodes.Items {
			if !ready[node.Name] || node.Spec.Unschedulable || len(node.Spec.Taints) > 0 {
				violations = append(violations, fmt.Sprintf("node %s accepts no pods: ready %s, taints %v", node.Name, readiness(&node), node.Spec.Taints))
			}
		}
	}
	if len(pods.Items) != int(w.replicas.Load()) {
		violations = append(violations, fmt.Sprintf("there are %d pods, want %d", len(pods.Items), w.replicas.Load()))
	}
	return violations
}
