package webhook

import "regexp"

// topicPattern is a whole topic like access.ended, a prefix like access.*, or * for all.
var topicPattern = regexp.MustCompile(`^(\*|[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*(\.\*)?)$`)

// maxTopic is the longest topic, in bytes.
const maxTopic = 100

// ValidTopic reports whether an endpoint can ask for the topic. One that no fact has today is taken: a later version may.
func ValidTopic(topic string) bool { return len(topic) <= maxTopic && topicPattern.MatchString(topic) }
