// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/karpenter/pkg/events"
	podutils "sigs.k8s.io/karpenter/pkg/utils/pod"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// Pod is a pod on a Node of ours, or a pending one.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// App is the name of the application, by the labels that are commonly used for it.
	App string `json:"app,omitempty"`
	// Node is empty for a pending pod.
	Node        string    `json:"node,omitempty"`
	Ready       bool      `json:"ready"`
	Deleting    bool      `json:"deleting,omitempty"`
	MilliCPUs   int64     `json:"milliCPUs"`
	MemoryBytes int64     `json:"memoryBytes"`
	Created     time.Time `json:"created"`
	// Reason is why the pod is pending or not ready; empty if it is ready.
	Reason string `json:"reason,omitempty"`
}

// podsByNode returns the pods that use a Node, sorted by name.
func podsByNode(pods []corev1.Pod) map[string][]Pod {
	out := map[string][]Pod{}
	for i := range pods {
		pod := &pods[i]
		if pod.Spec.NodeName != "" && !podutils.IsTerminal(pod) {
			out[pod.Spec.NodeName] = append(out[pod.Spec.NodeName], NewPod(pod))
		}
	}
	for _, list := range out {
		slices.SortFunc(list, func(a, b Pod) int {
			return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
		})
	}
	return out
}

// NewPod returns what a Map shows of a pod.
func NewPod(pod *corev1.Pod) Pod {
	requests := resources.RequestsForPods(pod)
	p := Pod{
		Namespace: pod.Namespace, Name: pod.Name, Node: pod.Spec.NodeName, Created: pod.CreationTimestamp.Time, Deleting: !pod.DeletionTimestamp.IsZero(),
		App:       cmp.Or(pod.Labels["app.kubernetes.io/name"], pod.Labels["app"], pod.Labels["k8s-app"]),
		MilliCPUs: requests.Cpu().MilliValue(), MemoryBytes: requests.Memory().Value(),
	}
	for _, condition := range pod.Status.Conditions {
		p.Ready = p.Ready || condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue
	}
	if !p.Ready {
		p.Reason = notReadyReason(pod)
	}
	return p
}

// notReadyReason returns why a pod does not run, as far as Kubernetes reports it: after a
// reset of the Node, containers wait without a reason.
func notReadyReason(pod *corev1.Pod) string {
	for _, status := range pod.Status.ContainerStatuses {
		if waiting := status.State.Waiting; waiting != nil && waiting.Reason != "" {
			return waiting.Reason
		}
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Status == corev1.ConditionFalse && condition.Reason != "" {
			return condition.Reason
		}
	}
	return string(pod.Status.Phase)
}

// pendingPods returns the pods that wait for a Node, with Karpenter's reason.
func pendingPods(in Input) []Pod {
	latest := map[types.UID]map[string]corev1.Event{}
	for _, event := range in.Objects.Events {
		uid := event.InvolvedObject.UID
		if latest[uid] == nil {
			latest[uid] = map[string]corev1.Event{}
		}
		if before, ok := latest[uid][event.Reason]; !ok || EventTime(before).Before(EventTime(event)) {
			latest[uid][event.Reason] = event
		}
	}
	out := []Pod{}
	for i := range in.Objects.Pods {
		pod := &in.Objects.Pods[i]
		if pod.Spec.NodeName != "" || podutils.IsTerminal(pod) || !pod.DeletionTimestamp.IsZero() {
			continue
		}
		p := NewPod(pod)
		p.Reason = cmp.Or(pendingReason(latest[pod.UID]), schedulerMessage(pod), p.Reason)
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b Pod) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// pendingReason returns what Karpenter decided last about a pod. NoHostFits has the cause of
// Karpenter's own event FailedScheduling.
func pendingReason(latest map[string]corev1.Event) string {
	nominated, noHost, failed := latest[events.Nominated], latest[v1alpha1.EventNoHostFits], latest[events.FailedScheduling]
	switch {
	case nominated.Message != "" && !EventTime(nominated).Before(EventTime(noHost)) && !EventTime(nominated).Before(EventTime(failed)):
		return nominated.Message
	case noHost.Message != "":
		return noHost.Message
	}
	return failed.Message
}

// schedulerMessage returns why the scheduler found no Node.
func schedulerMessage(pod *corev1.Pod) string {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
			return cmp.Or(condition.Message, condition.Reason)
		}
	}
	return ""
}
