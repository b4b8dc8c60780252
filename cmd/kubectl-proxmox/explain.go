// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/awslabs/operatorpkg/status"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet/terminal"
)

// explanation is why an object has no VM: the verdict in one line, and the conditions and
// events of the objects that it depends on.
type explanation struct {
	Verdict string            `json:"verdict"`
	Objects []explainedObject `json:"objects,omitempty"`
	// Launch is the timeline of a NodeClaim; nil for other objects.
	Launch *launchTimeline `json:"launch,omitempty"`
}

type explainedObject struct {
	Object  string   `json:"object"`
	Details []string `json:"details,omitempty"`
}

// explain collects an explanation.
type explain struct {
	kube client.Client
	now  time.Time
	explanation
}

// explainKind is a kind of objects that can be explained.
type explainKind struct {
	// names of the kind; the first one is listed in the help.
	names   []string
	explain func(*explain, context.Context, client.ObjectKey) error
}

var explainKinds = []explainKind{
	{[]string{"pod", "pods", "po"}, (*explain).pod},
	{[]string{"nodeclaim", "nodeclaims"}, (*explain).claim},
	{[]string{"node", "nodes", "no"}, (*explain).node},
	{[]string{"nodepool", "nodepools"}, (*explain).pool},
	{[]string{"nodeclass", "proxmoxnodeclass", "proxmoxnodeclasses", "pnc"}, (*explain).class},
}

// kindNames returns the accepted arguments.
func kindNames() []string {
	var names []string
	for _, kind := range explainKinds {
		names = append(names, kind.names[0]+"/NAME")
	}
	return names
}

func newExplain(cluster *kubeCluster) *cobra.Command {
	namespace, format := metav1.NamespaceDefault, &output{}
	command := &cobra.Command{
		Use:   "explain " + strings.Join(kindNames(), " | "),
		Short: "Show why a pod, NodeClaim, Node, NodePool or NodeClass gets no VM",
		Long: `Show why a pod, NodeClaim, Node, NodePool or NodeClass gets no VM.

The first line is the verdict. The conditions and events that it is based on follow. For a
NodeClaim and a Node, the timeline of the launch shows how long each step took, and which
step the launch waits for. A NodeClaim or Node that was deleted is explained by its events,
which Kubernetes keeps for an hour by default.`,
		Example: `  kubectl proxmox explain pod/web-7d4b9c-x2x8k -n shop
  kubectl proxmox explain nodeclaim default-kn52t
  kubectl proxmox explain pnc/default`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(command *cobra.Command, args []string) error {
			// As for kubectl, kind and name can also be two arguments.
			argument := strings.Join(args, "/")
			kindName, name, _ := strings.Cut(argument, "/")
			n := slices.IndexFunc(explainKinds, func(k explainKind) bool { return slices.Contains(k.names, kindName) })
			if n < 0 || name == "" || strings.Contains(name, "/") {
				return fmt.Errorf("%q is not one of %s", argument, strings.Join(kindNames(), ", "))
			}
			kube, _, err := cluster.connect()
			if err != nil {
				return err
			}
			e := &explain{kube: kube, now: time.Now()}
			if err := explainKinds[n].explain(e, command.Context(), client.ObjectKey{Namespace: namespace, Name: name}); err != nil {
				return err
			}
			return format.print(command.OutOrStdout(), e.explanation, e.print)
		},
		ValidArgsFunction: completeFirst(cluster, explainable(&namespace)),
	}
	format.flags(command)
	command.Flags().StringVarP(&namespace, "namespace", "n", namespace, "namespace of the pod")
	return command
}

func (e *explanation) print(out io.Writer) error {
	text := terminal.Printable(e.Verdict) + "\n"
	for _, object := range e.Objects {
		text += terminal.Printable(object.Object) + "\n"
		for _, detail := range object.Details {
			text += "  " + terminal.Printable(detail) + "\n"
		}
	}
	if _, err := io.WriteString(out, text); err != nil || e.Launch == nil {
		return err
	}
	return e.Launch.print(out)
}

func (e *explanation) add(object string, details ...string) {
	e.Objects = append(e.Objects, explainedObject{object, details})
}

// untrueConditions returns the conditions that should be true and are not, without Ready,
// which only summarizes them, and without those that wait for another condition.
func untrueConditions(all []status.Condition) []string {
	var out []string
	for _, c := range all {
		if c.Type != status.ConditionReady && !c.IsTrue() && c.Reason != v1alpha1.ReasonNotChecked && slices.Contains(positiveConditions, c.Type) {
			out = append(out, conditionText(c))
		}
	}
	return out
}

func conditionText(c status.Condition) string {
	return fmt.Sprintf("%s is %s: %s", c.Type, c.Status, c.Message)
}

// positiveConditions are the conditions that are true in the normal state. Others, such
// as Drifted, are not.
var positiveConditions = append([]string{
	karpv1.ConditionTypeLaunched, karpv1.ConditionTypeRegistered, karpv1.ConditionTypeInitialized,
	karpv1.ConditionTypeValidationSucceeded, karpv1.ConditionTypeNodeClassReady, karpv1.ConditionTypeNodeRegistrationHealthy,
	v1alpha1.ConditionLaunchesHealthy, v1alpha1.ConditionCapacityAvailable, v1alpha1.ConditionReserveAvailable, v1alpha1.ConditionAddressesAvailable, v1alpha1.ConditionAddressPoolsConsistent,
}, classConditions()...)

func classConditions() []string {
	var types []string
	for _, c := range new(v1alpha1.ProxmoxNodeClass).StatusConditions().List() {
		types = append(types, c.Type)
	}
	return types
}

// events returns the events that match fields, the oldest first.
func (e *explain) events(ctx context.Context, match client.MatchingFields) ([]corev1.Event, error) {
	list := &corev1.EventList{}
	if err := e.kube.List(ctx, list, match); err != nil {
		return nil, fmt.Errorf("listing events with %s: %w", fields.Set(match), err)
	}
	slices.SortFunc(list.Items, func(a, b corev1.Event) int { return fleet.EventTime(a).Compare(fleet.EventTime(b)) })
	return list.Items, nil
}

// eventsOf returns the events of an object, the oldest first.
func (e *explain) eventsOf(ctx context.Context, object client.Object) ([]corev1.Event, error) {
	return e.events(ctx, client.MatchingFields{"involvedObject.uid": string(object.GetUID())})
}

// eventLines returns the warnings and progress events.
func eventLines(all []corev1.Event) []string {
	var out []string
	for _, event := range all {
		if event.Type == corev1.EventTypeWarning || strings.HasPrefix(event.Reason, "VM") ||
			slices.Contains([]string{events.Nominated, events.DisruptionTerminating, events.DisruptionLaunching}, event.Reason) {
			out = append(out, fmt.Sprintf("%s %s: %s", fleet.EventTime(event).UTC().Format("15:04:05 MST"), event.Reason, event.Message))
		}
	}
	return out
}
