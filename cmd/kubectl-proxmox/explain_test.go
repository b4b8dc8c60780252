// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Run(m)) }

// createEvent creates an event of an object.
func createEvent(w *testenv.Env, object client.Object, kind, eventType, reason, message string) {
	event := &corev1.Event{
		InvolvedObject: corev1.ObjectReference{Kind: kind, Name: object.GetName(), Namespace: object.GetNamespace(), UID: object.GetUID()},
		Type:           eventType, Reason: reason, Message: message, LastTimestamp: metav1.Now(),
	}
	event.GenerateName, event.Namespace = "event-", "default"
	if object.GetNamespace() != "" {
		event.Namespace = object.GetNamespace()
	}
	w.Create(event)
}

func TestExplain(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	class := w.Class()
	pool := w.Pool(class)
	claim := w.Launched("a", class)
	claim.StatusConditions().SetUnknownWithReason(karpv1.ConditionTypeRegistered, "NodeNotFound", "Node not registered with cluster")
	w.Expect(w.Kube.Status().Update(t.Context(), claim)).To(Succeed())
	createEvent(w, claim, "NodeClaim", corev1.EventTypeWarning, "NodeNotJoined", "VM 1 has been running, but no Node joined")
	createEvent(w, claim, "NodeClaim", corev1.EventTypeNormal, "DisruptionBlocked", "is not shown")
	class = testenv.Reload(w, class)
	class.StatusConditions().SetFalse(v1alpha1.ConditionCapacityAvailable, "InsufficientCapacity", "insufficient capacity for the smallest VM: pve1: 1 CPUs free, 2 required")
	class.Status.UnusableZones = []v1alpha1.UnusableZone{{Zone: "region-1/pve2", Reason: "bridge \"vmbr0\" is not on this host"}}
	w.Expect(w.Kube.Status().Update(t.Context(), class)).To(Succeed())
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	pod.Name, pod.Namespace = "web", w.Name
	w.Create(pod)
	createEvent(w, pod, "Pod", corev1.EventTypeNormal, "Nominated", "Pod should schedule on: nodeclaim/"+claim.Name)
	createEvent(w, pod, "Pod", corev1.EventTypeWarning, "NoHostFits", "No node can be created for this pod now")

	var out bytes.Buffer
	e := &explain{kube: w.Kube, out: &out}
	w.Expect(e.pod(t.Context(), client.ObjectKeyFromObject(pod))).To(Succeed())
	w.Expect(out.String()).To(And(
		ContainSubstring("pod "+w.Name+"/web is waiting for a node\n"),
		ContainSubstring("NoHostFits: No node can be created for this pod now\n"),
		ContainSubstring(fmt.Sprintf("nodeclaim %s, VM %d on host pve1 of region region-1\n", claim.Name, w.Intent(claim).VMID)),
		ContainSubstring("  Registered is Unknown: Node not registered with cluster\n"),
		ContainSubstring("NodeNotJoined: VM 1 has been running, but no Node joined\n"),
		ContainSubstring("nodepool "+pool.Name+"\n"),
		ContainSubstring("proxmoxnodeclass "+class.Name+", usable hosts: 1\n"),
		ContainSubstring("  CapacityAvailable is False: insufficient capacity for the smallest VM: pve1: 1 CPUs free, 2 required\n"),
		ContainSubstring("  region-1/pve2 is not usable: bridge \"vmbr0\" is not on this host\n"),
		Not(ContainSubstring("is not shown")),
	))
	w.Expect(e.claim(t.Context(), "absent")).To(MatchError(ContainSubstring("reading NodeClaim absent")))
}
