//! scripted conversations
