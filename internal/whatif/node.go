// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"errors"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	podutils "sigs.k8s.io/karpenter/pkg/utils/pod"
)

// join does what a kubelet and core's registration do: the NodeClaim gets a Node that is
// ready.
func (s *simulation) join(claim *karpv1.NodeClaim) error {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: claim.Name, Labels: maps.Clone(claim.Labels)},
		Spec:       corev1.NodeSpec{ProviderID: claim.Status.ProviderID, Taints: claim.Spec.Taints},
		Status: corev1.NodeStatus{
			Capacity: claim.Status.Capacity, Allocatable: claim.Status.Allocatable,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
	maps.Copy(node.Labels, map[string]string{
		karpv1.NodeRegisteredLabelKey: "true", karpv1.NodeInitializedLabelKey: "true", corev1.LabelHostname: node.Name,
	})
	claim.Status.NodeName = node.Name
	for _, condition := range []string{karpv1.ConditionTypeRegistered, karpv1.ConditionTypeInitialized} {
		claim.StatusConditions().SetTrue(condition)
	}
	if err := errors.Join(s.kube.Status().Update(s.ctx, claim), s.kube.Create(s.ctx, node)); err != nil {
		return fmt.Errorf("adding the node of NodeClaim %s: %w", claim.Name, err)
	}
	s.cluster.UpdateNodeClaim(claim)
	return s.cluster.UpdateNode(s.ctx, node)
}

// bind does what the Kubernetes scheduler does: the pods run on the Node.
func (s *simulation) bind(node string, pods []*corev1.Pod) error {
	for _, planned := range pods {
		pod := &corev1.Pod{}
		if err := s.kube.Get(s.ctx, client.ObjectKeyFromObject(planned), pod); apierrors.IsNotFound(err) {
			continue // a virtual pod of a CapacityBuffer
		} else if err != nil {
			return fmt.Errorf("binding pod %s/%s: %w", planned.Namespace, planned.Name, err)
		}
		pod.Spec.NodeName = node
		pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}}
		if err := errors.Join(s.kube.Update(s.ctx, pod), s.cluster.UpdatePod(s.ctx, pod)); err != nil {
			return fmt.Errorf("binding pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
	}
	return nil
}

// podsOn returns the names of the pods on a Node; none if its name is empty.
func (s *simulation) podsOn(node string) ([]string, error) {
	if node == "" {
		return nil, nil
	}
	pods := &corev1.PodList{}
	if err := s.kube.List(s.ctx, pods, client.MatchingFields{"spec.nodeName": node}); err != nil {
		return nil, err
	}
	var names []string
	for i := range pods.Items {
		names = append(names, client.ObjectKeyFromObject(&pods.Items[i]).String())
	}
	return names, nil
}

// evict deletes a Node and its NodeClaim. The claim may be nil, and the name of the Node
// empty if it has not joined.
func (s *simulation) evict(node string, claim *karpv1.NodeClaim) error {
	if node != "" {
		if err := s.deleteNode(node); err != nil {
			return err
		}
	}
	if claim == nil {
		return nil
	}
	s.cluster.DeleteNodeClaim(claim.Name)
	return s.delete(claim)
}

// deleteNode deletes a Node, and makes the pods pending that other Nodes can run.
func (s *simulation) deleteNode(node string) error {
	pods := &corev1.PodList{}
	if err := s.kube.List(s.ctx, pods, client.MatchingFields{"spec.nodeName": node}); err != nil {
		return err
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		s.cluster.DeletePod(client.ObjectKeyFromObject(pod))
		err := s.delete(pod)
		if podutils.IsReschedulable(pod) {
			pending := asPending(pod)
			pending.ResourceVersion, pending.DeletionTimestamp = "", nil
			err = errors.Join(err, s.kube.Create(s.ctx, pending))
		}
		if err != nil {
			return fmt.Errorf("evicting pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
	}
	s.cluster.DeleteNode(node)
	return s.delete(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
}

// delete deletes an object without its finalizers.
func (s *simulation) delete(object client.Object) error {
	key := client.ObjectKeyFromObject(object)
	if err := s.kube.Get(s.ctx, key, object); err != nil {
		return client.IgnoreNotFound(err)
	}
	if len(object.GetFinalizers()) > 0 {
		object.SetFinalizers(nil)
		if err := s.kube.Update(s.ctx, object); err != nil || !object.GetDeletionTimestamp().IsZero() {
			return err // the API deletes an object without finalizers that is being deleted
		}
	}
	return client.IgnoreNotFound(s.kube.Delete(s.ctx, object))
}
