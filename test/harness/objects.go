// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// objects returns the cluster's objects except Secrets as JSON by kind and name.
func (p *Plane) objects(ctx context.Context) (map[string]string, error) {
	config := rest.CopyConfig(p.Config)
	config.WarningHandler = rest.NoWarnings{} // deprecated kinds are listed too
	discover, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	lists, err := discover.ServerPreferredResources()
	if err != nil {
		return nil, fmt.Errorf("discovering API resources: %w", err)
	}
	api, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	for _, list := range lists {
		group, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, resource := range list.APIResources {
			if resource.Kind == "Secret" || !slices.Contains(resource.Verbs, "list") {
				continue
			}
			objects, err := api.Resource(group.WithResource(resource.Name)).List(ctx, metav1.ListOptions{})
			if err != nil {
				return nil, fmt.Errorf("listing %s: %w", resource.Name, err)
			}
			for _, object := range objects.Items {
				text, err := object.MarshalJSON()
				if err != nil {
					return nil, err
				}
				found[object.GetKind()+" "+object.GetNamespace()+"/"+object.GetName()] = string(text)
			}
		}
	}
	return found, nil
}

// taskLogs returns the logs of all recorded tasks of online hosts by UPID.
func (a *API) taskLogs(ctx context.Context) (map[string]string, error) {
	hosts, err := a.online(ctx)
	if err != nil {
		return nil, err
	}
	logs := map[string]string{}
	for _, host := range hosts {
		var tasks []struct{ UPID string }
		if err := a.Call(ctx, http.MethodGet, "/nodes/"+host+"/tasks", url.Values{"limit": {"1000"}}, &tasks); err != nil {
			return nil, err
		}
		for _, task := range tasks {
			var lines []struct{ T string }
			if err := a.Call(ctx, http.MethodGet, "/nodes/"+host+"/tasks/"+url.PathEscape(task.UPID)+"/log", url.Values{"limit": {"1000"}}, &lines); err != nil {
				return nil, err
			}
			for _, line := range lines {
				logs["the log of task "+task.UPID] += line.T + "\n"
			}
		}
	}
	return logs, nil
}

func readIfExists(path string) (string, error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return string(content), err
}
