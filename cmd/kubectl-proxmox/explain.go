// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/awslabs/operatorpkg/status"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
)

// explain prints the conditions and events of the objects that a pod or NodeClaim
// depends on.
type explain struct {
	kube client.Client
	out  io.Writer
}

func newExplain(cluster *kubeCluster) *cobra.Command {
	namespace := metav1.NamespaceDefault
	command := &cobra.Command{
		Use:   "explain pod/NAME | nodeclaim/NAME | nodepool/NAME | nodeclass/NAME",
		Short: "Show why a pod, NodeClaim, NodePool or NodeClass gets no VM",
		Example: `  kubectl proxmox explain pod/web-7d4b9c-x2x8k -n shop
  kubectl proxmox explain nodeclaim/default-kn52t
  kubectl proxmox explain nodeclass/default`,
		Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			kube, _, err := cluster.connect()
			if err != nil {
				return err
			}
			e := &explain{kube: kube, out: command.OutOrStdout()}
			kind, name, ok := strings.Cut(args[0], "/")
			switch {
			case ok && slices.Contains([]string{"pod", "pods", "po"}, kind):
				return e.pod(command.Context(), client.ObjectKey{Namespace: namespace, Name: name})
			case ok && slices.Contains([]string{"nodeclaim", "nodeclaims"}, kind):
				return e.claim(command.Context(), name)
			case ok && slices.Contains([]string{"nodepool", "nodepools"}, kind):
				return e.pool(command.Context(), name)
			case ok && slices.Contains([]string{"nodeclass", "proxmoxnodeclass", "proxmoxnodeclasses"}, kind):
				return e.class(command.Context(), name)
			}
			return fmt.Errorf("%q is not one of pod/NAME, nodeclaim/NAME, nodepool/NAME, nodeclass/NAME", args[0])
		},
	}
	command.Flags().StringVarP(&namespace, "namespace", "n", namespace, "namespace of the pod")
	return command
}

// nominated matches the NodeClaim in Karpenter's event Nominated of a pod.
var nominated = regexp.MustCompile(`nodeclaim/([a-z0-9.-]+)`)

func (e *explain) pod(ctx context.Context, key client.ObjectKey) error {
	pod := &corev1.Pod{}
	if err := e.kube.Get(ctx, key, pod); err != nil {
		return fmt.Errorf("reading pod %s: %w", key, err)
	}
	if pod.Spec.NodeName != "" {
		e.printf(0, "pod %s is scheduled on node %s", key, pod.Spec.NodeName)
		return nil
	}
	e.printf(0, "pod %s is waiting for a node", key)
	events, err := e.events(ctx, pod)
	if err != nil {
		return err
	}
	for _, event := range slices.Backward(events) {
		match := nominated.FindStringSubmatch(event.Message)
		if event.Reason != "Nominated" || match == nil {
			continue
		}
		if err := e.claim(ctx, match[1]); client.IgnoreNotFound(err) != nil {
			return err
		}
		break
	}
	pools := &karpv1.NodePoolList{}
	if err := e.kube.List(ctx, pools); err != nil {
		return fmt.Errorf("listing nodepools: %w", err)
	}
	if len(pools.Items) == 0 {
		e.printf(0, "there is no nodepool: Karpenter cannot create a node for any pod")
	}
	for _, pool := range pools.Items {
		if err := e.pool(ctx, pool.Name); err != nil {
			return err
		}
	}
	return nil
}

func (e *explain) claim(ctx context.Context, name string) error {
	claim := &karpv1.NodeClaim{}
	if err := e.kube.Get(ctx, client.ObjectKey{Name: name}, claim); err != nil {
		return fmt.Errorf("reading NodeClaim %s: %w", name, err)
	}
	where := ""
	if intent, ok, err := instance.ReadIntent(claim); err == nil && ok {
		where = fmt.Sprintf(", VM %d on host %s of region %s", intent.VMID, intent.Host, intent.Region)
	}
	e.printf(0, "nodeclaim %s%s", name, where)
	if !claim.DeletionTimestamp.IsZero() {
		e.printf(1, "is being deleted since %s", claim.DeletionTimestamp.UTC().Format("15:04:05 MST"))
	}
	e.conditions(claim.StatusConditions().List())
	_, err := e.events(ctx, claim)
	return err
}

func (e *explain) pool(ctx context.Context, name string) error {
	pool := &karpv1.NodePool{}
	if err := e.kube.Get(ctx, client.ObjectKey{Name: name}, pool); err != nil {
		return fmt.Errorf("reading nodepool %s: %w", name, err)
	}
	e.printf(0, "nodepool %s", name)
	if err := pool.Spec.Limits.ExceededBy(pool.Status.Resources); err != nil {
		e.printf(1, "%v", err)
	}
	e.conditions(pool.StatusConditions().List())
	ref := pool.Spec.Template.Spec.NodeClassRef
	if ref == nil || ref.Group != v1alpha1.Group {
		return nil
	}
	return e.class(ctx, ref.Name)
}

func (e *explain) class(ctx context.Context, name string) error {
	class := &v1alpha1.ProxmoxNodeClass{}
	if err := e.kube.Get(ctx, client.ObjectKey{Name: name}, class); err != nil {
		return fmt.Errorf("reading ProxmoxNodeClass %s: %w", name, err)
	}
	e.printf(0, "proxmoxnodeclass %s, usable hosts: %d", name, len(class.Status.SelectedZones))
	e.conditions(class.StatusConditions().List())
	for _, zone := range class.Status.UnusableZones {
		e.printf(1, "%s is not usable: %s", zone.Zone, zone.Reason)
	}
	return nil
}

// conditions prints the conditions that should be true and are not, without Ready,
// which only summarizes them.
func (e *explain) conditions(all []status.Condition) {
	for _, c := range all {
		if c.Type != status.ConditionReady && !c.IsTrue() && slices.Contains(positiveConditions, c.Type) {
			e.printf(1, "%s is %s: %s", c.Type, c.Status, c.Message)
		}
	}
}

// positiveConditions are the conditions that are true in the normal state. Others, such
// as Drifted, are not.
var positiveConditions = append([]string{
	karpv1.ConditionTypeLaunched, karpv1.ConditionTypeRegistered, karpv1.ConditionTypeInitialized,
	karpv1.ConditionTypeValidationSucceeded, karpv1.ConditionTypeNodeClassReady, karpv1.ConditionTypeNodeRegistrationHealthy,
	v1alpha1.ConditionLaunchesHealthy, v1alpha1.ConditionCapacityAvailable, v1alpha1.ConditionAddressesAvailable, v1alpha1.ConditionAddressPoolsConsistent,
}, classConditions()...)

func classConditions() []string {
	var types []string
	for _, c := range new(v1alpha1.ProxmoxNodeClass).StatusConditions().List() {
		types = append(types, c.Type)
	}
	return types
}

// events prints the warnings and progress events of an object and returns all its
// events, the oldest first.
func (e *explain) events(ctx context.Context, object client.Object) ([]corev1.Event, error) {
	list := &corev1.EventList{}
	if err := e.kube.List(ctx, list, client.MatchingFields{"involvedObject.uid": string(object.GetUID())}); err != nil {
		return nil, fmt.Errorf("listing events of %s: %w", object.GetName(), err)
	}
	at := func(event corev1.Event) metav1.Time {
		if event.LastTimestamp.IsZero() {
			return event.CreationTimestamp
		}
		return event.LastTimestamp
	}
	slices.SortFunc(list.Items, func(a, b corev1.Event) int { return at(a).Compare(at(b).Time) })
	for _, event := range list.Items {
		if event.Type == corev1.EventTypeWarning || strings.HasPrefix(event.Reason, "VM") || event.Reason == "Nominated" {
			e.printf(1, "%s %s: %s", at(event).UTC().Format("15:04:05"), event.Reason, event.Message)
		}
	}
	return list.Items, nil
}

func (e *explain) printf(depth int, format string, args ...any) {
	fmt.Fprintln(e.out, strings.Repeat("  ", depth)+fmt.Sprintf(format, args...))
}
