// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Secrets are values that may appear only in the Secrets and files that store them, and on the
// boot drive of the VM that needs them.
type Secrets struct {
	mu sync.Mutex
	// values maps a description to the encodings of secret values.
	values map[string][]string
	// seen are the values whose encodings are known: those of a Helm release are large.
	seen map[string]bool
}

// WatchSecrets collects the values of all Secrets until the context ends, including join
// tokens that exist for seconds.
func WatchSecrets(ctx context.Context, kube client.WithWatch) (*Secrets, error) {
	watch, err := kube.Watch(ctx, &corev1.SecretList{})
	if err != nil {
		return nil, fmt.Errorf("watching secrets: %w", err)
	}
	s := &Secrets{values: map[string][]string{}, seen: map[string]bool{}}
	go func() {
		<-ctx.Done()
		watch.Stop()
	}()
	go func() {
		for event := range watch.ResultChan() {
			if secret, ok := event.Object.(*corev1.Secret); ok {
				s.addSecret(secret)
			}
		}
	}()
	return s, nil
}

// publicKeys are the keys of Secrets whose values are not secret: parts of the configuration of every Node, a version, certificates
// and names.
var publicKeys = []string{"apiServer", "clusterDNS", "clusterDomain", "cloudProvider", "installKubernetes", "ca.crt", "namespace"}

// addSecret adds the secret values of a Secret. The ID of a join token is not secret.
func (s *Secrets) addSecret(secret *corev1.Secret) {
	for key, value := range secret.Data {
		if secret.Type == corev1.SecretTypeBootstrapToken && key != "token-secret" {
			continue
		}
		if !slices.Contains(publicKeys, key) {
			s.Add(secret.Name+"/"+key, string(value))
		}
	}
}

// minLength is the length of the shortest value that does not occur in text by chance.
const minLength = 12

// Add adds a value that is in no Secret. It ignores values shorter than minLength.
func (s *Secrets) Add(what, value string) {
	if value = strings.TrimSpace(value); len(value) < minLength {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.seen[value] {
		s.seen[value] = true
		s.values[what] = append(s.values[what], encodings(value)...)
	}
}

// Names returns the descriptions of all values.
func (s *Secrets) Names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.values))
}

// secretPatterns match text that is secret regardless of its value.
var secretPatterns = map[string]*regexp.Regexp{
	"a login ticket of Proxmox": regexp.MustCompile(`PVE:[^\s":]+@[a-z]+:[0-9A-F]{8}::`),
	"the header of a token":     regexp.MustCompile(`PVEAPIToken[= ]`),
	"a private key":             regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY-----`),
}

// FindIn returns a description of each secret in a text, in any of the encodings used in logs
// and objects.
func (s *Secrets) FindIn(where, text string) []string {
	var found []string
	for what, pattern := range secretPatterns {
		if pattern.MatchString(text) {
			found = append(found, fmt.Sprintf("%s shows %s", where, what))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for what, forms := range s.values {
		if slices.ContainsFunc(forms, func(form string) bool { return strings.Contains(text, form) }) {
			found = append(found, fmt.Sprintf("%s shows the value of %s", where, what))
		}
	}
	return found
}

func encodings(value string) []string {
	quoted, err := json.Marshal(value)
	if err != nil {
		quoted = []byte(`""`)
	}
	return []string{
		value, string(quoted[1 : len(quoted)-1]), url.QueryEscape(value), url.PathEscape(value),
		base64.StdEncoding.EncodeToString([]byte(value)), base64.RawURLEncoding.EncodeToString([]byte(value)),
	}
}

// SearchScope is where secrets are searched for.
type SearchScope struct {
	Plane *Plane
	// Logs are the paths of the controller's logs.
	Logs []string
	// Metrics are the controller's metrics, if it runs.
	Metrics string
	// Proxmox is a client that may read everything.
	Proxmox *API
}

// Search searches logs, metrics, all Kubernetes objects except Secrets, VM configurations
// including notes, and all task logs, and returns a description of each secret found.
func (s *Secrets) Search(ctx context.Context, scope SearchScope) ([]string, error) {
	texts, err := scope.texts(ctx)
	if err != nil {
		return nil, fmt.Errorf("collecting texts to search for secrets: %w", err)
	}
	var found []string
	for where, text := range texts {
		found = append(found, s.FindIn(where, text)...)
	}
	slices.Sort(found)
	return found, nil
}

func (p SearchScope) texts(ctx context.Context) (map[string]string, error) {
	texts := map[string]string{"the metrics": p.Metrics}
	for _, path := range p.Logs {
		content, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		texts["the log "+path] = string(content)
	}
	objects, err := p.Plane.objects(ctx)
	if err != nil {
		return nil, err
	}
	if len(objects) < 20 {
		return nil, fmt.Errorf("found only %d objects", len(objects))
	}
	maps.Copy(texts, objects)
	guests, err := p.Proxmox.Guests(ctx)
	if err != nil {
		return nil, err
	}
	for _, guest := range guests {
		config, err := json.Marshal(guest.Config)
		if err != nil {
			return nil, err
		}
		texts[fmt.Sprintf("VM %d (%s)", guest.VMID, guest.Name)] = string(config)
	}
	logs, err := p.Proxmox.taskLogs(ctx)
	maps.Copy(texts, logs)
	return texts, err
}

// objects returns the cluster's objects except Secrets as JSON by kind and name.
func (p *Plane) objects(ctx context.Context) (map[string]string, error) {
	kubectl := func(args ...string) ([]byte, error) {
		return exec.CommandContext(ctx, p.binary, append([]string{"kubectl", "--kubeconfig", p.Kubeconfig}, args...)...).Output()
	}
	kinds, err := kubectl("api-resources", "--verbs=list", "--output=name")
	if err != nil {
		return nil, fmt.Errorf("discovering API resources: %w", err)
	}
	listed := slices.DeleteFunc(strings.Fields(string(kinds)), func(kind string) bool { return kind == "secrets" })
	content, err := kubectl("get", strings.Join(listed, ","), "--all-namespaces", "--output=json", "--show-managed-fields")
	if err != nil {
		return nil, fmt.Errorf("listing objects: %w", err)
	}
	var list struct{ Items []json.RawMessage }
	if err := json.Unmarshal(content, &list); err != nil {
		return nil, fmt.Errorf("listing objects: %w", err)
	}
	found := map[string]string{}
	for _, item := range list.Items {
		var object metav1.PartialObjectMetadata
		if err := json.Unmarshal(item, &object); err != nil {
			return nil, fmt.Errorf("listing objects: %w", err)
		}
		found[object.Kind+" "+object.Namespace+"/"+object.Name] = string(item)
	}
	return found, nil
}

// taskLogs returns the logs of all recorded tasks of online hosts by UPID.
func (a *API) taskLogs(ctx context.Context) (map[string]string, error) {
	logs, all := map[string]string{}, url.Values{"limit": {"1000"}}
	err := a.eachOnline(ctx, func(host string) error {
		var tasks []struct{ UPID string }
		if err := a.Call(ctx, http.MethodGet, "/nodes/"+host+"/tasks", all, &tasks); err != nil {
			return err
		}
		for _, task := range tasks {
			var lines []struct{ T string }
			if err := a.Call(ctx, http.MethodGet, "/nodes/"+host+"/tasks/"+url.PathEscape(task.UPID)+"/log", all, &lines); err != nil {
				return err
			}
			for _, line := range lines {
				logs["the log of task "+task.UPID] += line.T + "\n"
			}
		}
		return nil
	})
	return logs, err
}
