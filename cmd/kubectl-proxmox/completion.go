// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// completionName is the name of the executable that kubectl runs to complete the plugin's
// arguments.
const completionName = "kubectl_complete-proxmox"

// completionArgs returns the arguments of the command. As kubectl_complete-proxmox, the
// plugin completes them.
func completionArgs(args []string) []string {
	if strings.TrimSuffix(filepath.Base(args[0]), ".exe") == completionName {
		return append([]string{cobra.ShellCompRequestCmd}, args[1:]...)
	}
	return args[1:]
}

// completeFirst completes the first argument with names from the Kubernetes API; with
// nothing if it is not available.
func completeFirst(cluster *kubeCluster, names func(context.Context, client.Reader) []string) cobra.CompletionFunc {
	return func(command *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		kube, _, err := cluster.connect()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		found := slices.DeleteFunc(names(command.Context(), kube), func(name string) bool { return !strings.HasPrefix(name, prefix) })
		slices.Sort(found)
		return slices.Compact(found), cobra.ShellCompDirectiveNoFileComp
	}
}

// listNames returns the names of the objects of a list, after a prefix.
func listNames(ctx context.Context, kube client.Reader, list client.ObjectList, prefix string, options ...client.ListOption) []string {
	var names []string
	if kube.List(ctx, list, options...) != nil {
		return nil
	}
	_ = meta.EachListItem(list, func(o runtime.Object) error {
		if object, err := meta.Accessor(o); err == nil {
			names = append(names, prefix+object.GetName())
		}
		return nil
	})
	return names
}

// explainable returns the arguments of explain.
func explainable(namespace *string) func(context.Context, client.Reader) []string {
	return func(ctx context.Context, kube client.Reader) []string {
		return slices.Concat(
			listNames(ctx, kube, &corev1.PodList{}, "pod/", client.InNamespace(*namespace)),
			listNames(ctx, kube, &karpv1.NodeClaimList{}, "nodeclaim/"),
			listNames(ctx, kube, &corev1.NodeList{}, "node/"),
			listNames(ctx, kube, &karpv1.NodePoolList{}, "nodepool/"),
			listNames(ctx, kube, &v1alpha1.ProxmoxNodeClassList{}, "nodeclass/"))
	}
}

// classNames returns the names of the NodeClasses.
func classNames(ctx context.Context, kube client.Reader) []string {
	return listNames(ctx, kube, &v1alpha1.ProxmoxNodeClassList{}, "")
}

// classHosts returns the hosts that NodeClasses know, as REGION/HOST.
func classHosts(ctx context.Context, kube client.Reader) []string {
	classes := &v1alpha1.ProxmoxNodeClassList{}
	if kube.List(ctx, classes) != nil {
		return nil
	}
	var hosts []string
	for _, class := range classes.Items {
		for _, text := range class.Status.SelectedZones {
			if zone, err := v1alpha1.ParseTemplateZone(text); err == nil {
				hosts = append(hosts, zone.Region+"/"+zone.Host)
			}
		}
		for _, zone := range class.Status.UnusableZones {
			hosts = append(hosts, zone.Zone)
		}
	}
	return hosts
}
